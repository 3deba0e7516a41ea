"""Heads on the encoder: masked-language model, sentence order, classification.

T = packed tokens, S = sequences, n = masked positions, E = embedding size, H = hidden size, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels
from albert.model.batch import IGNORED, Batch
from albert.model.config import AlbertConfig
from albert.model.encoder import Embedding, Encoder

if TYPE_CHECKING:
    from albert.tasks import Pooling


@dataclass(frozen=True, slots=True)
class PretrainingOutput:
    """Mean losses of a batch; counts and correct predictions are scalars on the model's device."""

    loss: Tensor  # mlm_loss + sop_loss
    mlm_loss: Tensor
    sop_loss: Tensor | None  # None when the batch has no order labels; 0 when it ignores all of them
    mlm_correct: Tensor
    mlm_count: Tensor
    sop_correct: Tensor | None
    sop_count: Tensor | None
    # not in `loss`: of the span-boundary objective and of the contrast, where there are any
    boundary_loss: Tensor | None = None
    contrast_loss: Tensor | None = None


class MaskedLanguageModelHead(nn.Module):
    """Transform, activation, LayerNorm, then the decoder, on masked positions only.

    The decoder is the word table, unless the config unties them. The transform goes H -> E; in the bright
    layout H -> H, and back to E through the embedding's own projection.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__()
        width = config.hidden_size if config.layout == "bright" else config.embedding_size
        self.transform = nn.Linear(config.hidden_size, width)
        self.norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder: nn.Parameter | None = None
        if not config.tie_word_embeddings:
            self.decoder = nn.Parameter(torch.empty(config.vocab_size, config.embedding_size))
        self.activation = config.hidden_act

    def forward(self, hidden: Tensor, embedding: Embedding) -> Tensor:
        """States [n, E] of hidden states [n, H], ready for the decoder."""
        states, _ = kernels.linear_gelu(hidden, self.transform.weight, self.transform.bias, self.activation)
        states = self.norm(states)
        if embedding.order == "bright" and embedding.projection is not None:
            return states @ embedding.projection.weight
        return states


class PretrainingModel(nn.Module):
    """Encoder with the masked-language-model and sentence-order heads (Lan et al. 2020, section 3.1)."""

    def __init__(self, config: AlbertConfig):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.mlm = MaskedLanguageModelHead(config)
        self.sop = nn.Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range)

    @property
    def decoder(self) -> Tensor:
        """Weights [V, E] that turn the MLM head's states into scores."""
        return self.encoder.embedding.word if self.mlm.decoder is None else self.mlm.decoder

    def forward(self, batch: Batch) -> PretrainingOutput:
        rows, _ = batch.masked()
        n = len(rows)
        if batch.sop_labels is not None:
            rows = torch.cat([rows, batch.cu_seqlens[:-1]])
        masked, first = self.encoder(batch, rows).tensor_split([n])
        return self.losses(masked, first, batch)

    def losses(self, masked: Tensor, first: Tensor, batch: Batch) -> PretrainingOutput:
        """Losses from the hidden states of the masked positions [n, H] and of each sequence's first token
        [S, H]; the latter are ignored in a batch without order labels.
        """
        _, labels = batch.masked()
        losses, predicted = self.mlm_losses(masked, labels)
        mlm_count = (labels != IGNORED).sum()
        mlm_loss = losses.sum() / mlm_count.clamp_min(1)  # without masked tokens the mean would be NaN
        correct = (predicted == labels).sum()
        if batch.sop_labels is None:
            return PretrainingOutput(mlm_loss, mlm_loss, None, correct, mlm_count, None, None)
        sop_logits = self.sop_logits(first)
        sop_count = (batch.sop_labels != IGNORED).sum()
        sop_losses = F.cross_entropy(sop_logits, batch.sop_labels, ignore_index=IGNORED, reduction="sum")
        # no value is read back from the device, so that a CUDA graph can hold this
        sop_loss = sop_losses / sop_count.clamp_min(1)
        sop_correct = (sop_logits.argmax(-1) == batch.sop_labels).sum()
        return PretrainingOutput(
            mlm_loss + sop_loss, mlm_loss, sop_loss, correct, mlm_count, sop_correct, sop_count
        )

    def mlm_losses(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [n], in fp32 or more, and predictions [n] at masked positions with these labels [n], from
        their hidden states [n, H].
        """
        return self.decoder_losses(self.mlm(with_filler(hidden), self.encoder.embedding), labels)

    def decoder_losses(self, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`mlm_losses`, from states [n or more, E] that are ready for the decoder; the first n count."""
        n = len(labels)
        labels = kernels.fill(labels, len(states) - n, IGNORED)
        losses, predicted = kernels.mlm_loss(states, self.decoder, self.mlm.bias, labels)
        return losses[:n], predicted[:n]

    def mlm_logits(self, hidden: Tensor) -> Tensor:
        """Scores [n, V] fp32 of hidden states [n, H]; training never stores them."""
        states = self.mlm(hidden, self.encoder.embedding)
        return F.linear(states, self.decoder, self.mlm.bias).float()

    def sop_logits(self, first: Tensor) -> Tensor:
        """Scores [S, 2] fp32 for "in order" and "swapped" of the states of first tokens [S, H]."""
        return self.sop(self.encoder.pool(first)).float()


def with_filler(x: Tensor) -> Tensor:
    """Rows [n, ..] followed by as many more as `kernels.filler` says, all the first one again.

    LayerNorm has no gradient at a constant row, so that one is taken which occurs.
    """
    rest = kernels.filler(len(x), x)
    return torch.cat([x, x[:1].expand(rest, -1)]) if rest else x


def outside_autocast(x: Tensor) -> torch.autocast:
    """The context of a head in fp32: in bf16 over 1% of the examples have two labels with the same score."""
    return torch.autocast(x.device.type, enabled=False)


class SequenceClassifier(nn.Module):
    """Encoder with a linear classifier on each sequence's pooled first token (Devlin et al. 2019, section
    4.1), on the mean of its states (Reimers and Gurevych 2019, section 3), or on both side by side.
    """

    def __init__(self, encoder: Encoder, num_labels: int, pooling: Pooling = "cls"):
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.dropout = encoder.config.classifier_dropout_prob
        width = encoder.config.hidden_size * len(pooling.split("+"))
        self.classifier = nn.Linear(width, num_labels)
        initialize(self.classifier, encoder.config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Scores [S, num_labels] fp32."""
        first = batch.cu_seqlens[:-1]
        hidden = self.encoder(batch, first if self.pooling == "cls" else None).float()
        with outside_autocast(hidden):
            if self.pooling == "cls":
                pooled = self.encoder.pool(hidden)
            else:
                pooled = mean_states(hidden, batch.cu_seqlens)
            if self.pooling == "cls+mean":
                pooled = torch.cat([self.encoder.pool(hidden.index_select(0, first)), pooled], dim=-1)
            return self.classifier(F.dropout(pooled, self.dropout, self.training))


class TokenClassifier(nn.Module):
    """Encoder with a linear classifier on every token (Devlin et al. 2019, sections 4.2 and 5.3)."""

    def __init__(self, encoder: Encoder, num_labels: int):
        super().__init__()
        self.encoder = encoder
        self.dropout = encoder.config.classifier_dropout_prob
        self.classifier = nn.Linear(encoder.config.hidden_size, num_labels)
        initialize(self.classifier, encoder.config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Scores [T, num_labels] fp32."""
        hidden = F.dropout(self.encoder(batch).float(), self.dropout, self.training)
        with outside_autocast(hidden):
            return self.classifier(hidden)


class MeanPooler(nn.Module):
    """Encoder whose states are averaged over each sequence."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> Tensor:
        """Means [S, H] fp32 of the last layer's states."""
        return mean_states(self.encoder(batch).float(), batch.cu_seqlens)


def mean_states(hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The mean [S, H] over each sequence of states [T, H]; asks the device for no number."""
    lengths = cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(lengths, output_size=len(hidden))
    sums = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add(0, sequence, hidden)
    return sums / lengths[:, None]


def initialize(module: nn.Module, standard_deviation: float) -> None:
    """Set random weights: matrices normal, biases 0, LayerNorm the identity (Devlin et al. 2019)."""
    if next(module.parameters()).is_meta:
        return  # on which `normal_` imports torch.compile, three seconds
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
            continue
        for parameter in part.parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=standard_deviation)
            else:
                nn.init.zeros_(parameter)
