"""The encoder, on packed batches.

T = tokens of the packed batch, S = sequences, E = embedding size, H = hidden size, N = heads, D = head dim (H
= N D).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kernels
from albert.model.batch import Batch
from albert.model.config import AlbertConfig
from data.errors import InputError
from kernels.embedding import Norm, Projection, Tables


class Embedding(nn.Module):
    """Word, type and position tables, LayerNorm, projection to H, ordered by layout (see `kernels.embed`)."""

    def __init__(self, config: AlbertConfig):
        super().__init__()
        E, H = config.embedding_size, config.hidden_size
        W = H if config.layout == "bright" else E  # where types, positions and LayerNorm are
        self.word = nn.Parameter(torch.empty(config.vocab_size, E))
        self.token_type = nn.Parameter(torch.empty(config.type_vocab_size, W))
        self.position = nn.Parameter(torch.empty(config.max_position_embeddings, W))
        self.norm = nn.LayerNorm(W, config.layer_norm_eps)
        self.projection = None if config.layout == "bert" else nn.Linear(E, H, bias=config.layout == "google")
        self.order: Literal["google", "bright"] = "bright" if config.layout == "bright" else "google"
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: Batch) -> Tensor:  # [T, H]
        if batch.max_seqlen > len(self.position):  # a kernel would read past the table
            raise InputError(
                f"sequences of {batch.max_seqlen} tokens: the model has {len(self.position)} positions"
            )
        types = batch.token_type_ids
        if len(self.token_type) == 1:  # both parts of a pair are of the one type
            types = torch.zeros_like(types)
        dropout_p = self.dropout if self.training else 0.0
        # google's ALBERT drops what is normalised, before the projection
        last = self.projection if dropout_p and self.order == "google" else None
        first = self.projection if last is None else None
        x = kernels.embed(
            batch.input_ids, types, batch.position_ids,
            Tables(self.word, self.token_type, self.position),
            Norm(self.norm.weight, self.norm.bias, self.norm.eps),
            Projection(first.weight, first.bias) if first else None,
            self.order,
        )  # fmt: skip
        x = kernels.dropout(x, dropout_p)
        return kernels.linear(x, last.weight, last.bias) if last else x


class SelfAttention(nn.Module):
    """Multi-head attention within each sequence, residual, LayerNorm (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: AlbertConfig):
        super().__init__()
        H = config.hidden_size
        self.heads, self.head_dim = config.num_attention_heads, H // config.num_attention_heads
        self.query_key_value = nn.Linear(H, 3 * H)
        self.output = nn.Linear(H, H)
        self.norm = nn.LayerNorm(H, config.layer_norm_eps)
        self.norm_first = config.norm == "pre"
        self.attention_dropout = config.attention_probs_dropout_prob
        self.dropout = config.hidden_dropout_prob

    def forward(
        self, x: Tensor, cu_seqlens: Tensor, max_seqlen: int, schedule: kernels.Schedule = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """States [T, H] of x [T, H], or [R, H] of its `rows` [R] alone."""
        source = self.norm(x) if self.norm_first else x
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        qkv, source = kernels.split_heads(source, weight, bias, self.heads)
        x = x if self.norm_first else source
        dropout_p = self.attention_dropout if self.training else 0.0
        mixed = kernels.attention(  # [T, N, D]
            qkv, cu_seqlens, max_seqlen, scale=self.head_dim**-0.5, dropout_p=dropout_p, schedule=schedule
        )
        if rows is not None:
            mixed, x = mixed.index_select(0, rows), x.index_select(0, rows)
        mixed, weight = kernels.merge_heads(mixed, self.output.weight)
        dropout_p = self.dropout if self.training else 0.0
        if self.norm_first:
            return x + kernels.dropout(kernels.linear(mixed, weight, self.output.bias), dropout_p, rows=rows)
        # post-LN: the sum is normalised, so the residual never grows with depth
        return kernels.linear_add_layer_norm(mixed, weight, self.output.bias, x, self.norm, dropout_p, rows)


class FeedForward(nn.Module):
    """Two linear maps with an activation between, residual, LayerNorm (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: AlbertConfig):
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.norm_first = config.norm == "pre"
        self.activation, self.dropout = config.hidden_act, config.hidden_dropout_prob

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """States [R, H] of x [R, H], which are the batch's `rows` [R] if these are given."""
        source = self.norm(x) if self.norm_first else x
        y, source = kernels.linear_gelu(source, self.inner.weight, self.inner.bias, self.activation)
        weight, bias = self.output.weight, self.output.bias
        dropout_p = self.dropout if self.training else 0.0
        if self.norm_first:
            return x + kernels.dropout(kernels.linear(y, weight, bias), dropout_p, rows=rows)
        return kernels.linear_add_layer_norm(y, weight, bias, source, self.norm, dropout_p, rows)


class Encoder(nn.Module):
    """Embedding, then layers that may share their parameters (Lan et al. 2020, section 3.1).

    Layer l applies the attention and the feed-forward block the config names for it. With norm="pre" there is
    no LayerNorm after the last layer, as in albert_zh.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.attentions = nn.ModuleList(SelfAttention(config) for _ in range(config.blocks("attention")))
        self.feed_forwards = nn.ModuleList(FeedForward(config) for _ in range(config.blocks("ffn")))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.blocks_of_layer = config.blocks_of_layer
        # store only each layer's input and recompute the layer in the backward pass (Chen et al. 2016)
        self.activation_checkpointing = False

    def _schedule(self, x: Tensor, batch: Batch) -> kernels.Schedule:
        """The order in which attention visits the batch's sequences, the same for every layer."""
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        return kernels.attention_schedule(x, batch.cu_seqlens, batch.max_seqlen, head_dim)

    def layer(
        self, number: int, x: Tensor, cu_seqlens: Tensor, max_seqlen: int, schedule: kernels.Schedule = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Hidden states [T, H] after layer `number` (from 0) of those before it, or [R, H] of `rows` [R]."""
        attention, feed_forward = self.blocks_of_layer[number]
        x = self.attentions[attention](x, cu_seqlens, max_seqlen, schedule, rows)
        return self.feed_forwards[feed_forward](x, rows)

    def forward(self, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Hidden states [T, H] of every token after the last layer, or [R, H] of the tokens `rows` [R] int64.

        With `rows` the last layer computes everything after its attention for these tokens only, which saves
        much of the work in a model of few layers.
        """
        if torch.compiler.is_compiling():
            return self._forward(batch, rows)
        count, word = batch.tokens if rows is None else len(rows), self.embedding.word
        batch = batch.filled(kernels.filler(batch.tokens, word))
        rows = None if rows is None else kernels.fill(rows, kernels.filler(count, word))
        blocks = (part for block in (*self.attentions, *self.feed_forwards) for part in block.children())
        with kernels.copied_once(
            p for part in blocks if isinstance(part, nn.Linear) for p in part.parameters()
        ):
            return self._forward(batch, rows)[:count]

    def _forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        x = self.embedding(batch)
        schedule = self._schedule(x, batch)
        for number in range(self.config.depth):
            wanted = rows if number == self.config.depth - 1 else None
            arguments = (number, x, batch.cu_seqlens, batch.max_seqlen, schedule, wanted)
            if self.activation_checkpointing and self.training:
                x = checkpoint(self.layer, *arguments, use_reentrant=False)
            else:
                x = self.layer(*arguments)
        return x

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embedding's output and each layer's, [T, H] each."""
        states = [self.embedding(batch)]
        schedule = self._schedule(states[0], batch)
        for number in range(self.config.depth):
            states.append(self.layer(number, states[-1], batch.cu_seqlens, batch.max_seqlen, schedule))
        return states

    def pool(self, first: Tensor) -> Tensor:
        """One vector for each sequence [S, H]: its first token's state, of `first` [S, H], transformed."""
        return self.pooler(first).tanh()
