"""What a model costs: parameters by part, floating-point operations and activation memory of a token.

A multiplication and an addition are two operations; matrix products alone are counted, as they are all but
everything. T = sequence length, H = hidden size, E = embedding size, F = feed-forward size, N = heads,
V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from albert.config.shape import AlbertConfig

MASKED_SHARE = 0.15  # of the tokens go through the MLM head


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters by part. The encoder is the layers and the pooler, tables and projection are embeddings."""

    embeddings: int
    encoder: int
    heads: int  # MLM (its decoder is the word table, tied) and SOP

    @property
    def body(self) -> int:
        return self.embeddings + self.encoder

    @property
    def total(self) -> int:
        return self.body + self.heads


def measure_sizes(config: AlbertConfig) -> Sizes:
    """Parameters of a config's model, by arithmetic: nothing is allocated."""
    E, H, F, V = config.embedding_size, config.hidden_size, config.intermediate_size, config.vocab_size
    W = H if config.layout == "bright" else E  # where types, positions and LayerNorm are
    projection = {"google": E * H + H, "bright": E * H, "bert": 0}[config.layout]
    embeddings = V * E + (config.max_position_embeddings + config.type_vocab_size + 2) * W + projection
    attention = 4 * (H * H + H) + 2 * H
    feed_forward = 2 * H * F + F + H + 2 * H
    encoder = attention * config.attentions + feed_forward * config.feed_forwards + H * H + H
    transform = H if config.layout == "bright" else E
    heads = H * transform + 3 * transform + V + 2 * H + 2
    return Sizes(embeddings, encoder, heads)


def encoder_operations(config: AlbertConfig, T: float) -> float:
    """Operations of the encoder for each token of sequences of length T.

    Sharing parameters saves memory, not operations.
    """
    E, H, F = config.embedding_size, config.hidden_size, config.intermediate_size
    layer = 2 * (4 * H * H + 2 * H * F) + 4 * T * H  # projections, feed-forward; scores and their mixing
    projection = 0 if config.layout == "bert" else 2 * E * H
    return config.depth * layer + projection


def forward_operations(config: AlbertConfig, T: int) -> float:
    """Operations of a forward pass for each token of sequences of length T, with the MLM head on 15% of
    them.
    """
    E, H, V = config.embedding_size, config.hidden_size, config.vocab_size
    transform = H * H + H * E if config.layout == "bright" else H * E
    head = MASKED_SHARE * 2 * (transform + V * E)
    return encoder_operations(config, T) + head


def activation_bytes(config: AlbertConfig, T: int, *, checkpointing: bool = False) -> float:
    """Bytes the layers keep for the backward pass for each token of sequences of length T, all of them full,
    under bf16 autocast without dropout on a CPU; with checkpointing, each layer's input.

    Of each layer: q, k, v, the mixed heads, both blocks' bf16 inputs, and the fp32 sums that LayerNorm
    normalises; what goes into the activation, or its slope there, and, unless it is relu, what comes out
    (bf16 each); the attention probabilities in bf16; four fp32 statistics of LayerNorm.
    """
    H, F, N = config.hidden_size, config.intermediate_size, config.num_attention_heads
    if checkpointing:
        return config.depth * 2 * H
    inner = 2 * F if config.hidden_act == "relu" else 4 * F
    return config.depth * (16 * H + inner + 2 * N * T + 16)
