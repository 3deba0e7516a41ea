"""What a pretraining step computes: the model's losses, and SpanBERT's boundary objective or a contrast of
texts beside them.

n = masked positions, T = packed tokens, E = embedding size, H = hidden size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from albert.model.batch import Batch
from albert.model.contrast import contrastive_loss, ensure_dropout, with_copies
from albert.model.heads import PretrainingModel, PretrainingOutput, initialize, with_filler

# width and number of the embeddings of a token's place in its span (Joshi et al. 2020, appendix A: 200)
_PLACE_WIDTH, _PLACES = 200, 200


def span_bounds(masked_index: Tensor) -> tuple[Tensor, Tensor]:
    """First and last masked position, both [n] int64, of the run of masked positions each one is in.

    `masked_index` [n] ascends. No run crosses sequences: each begins with [CLS], which is never masked.

    >>> [t.tolist() for t in span_bounds(torch.tensor([3, 4, 7]))]
    [[3, 3, 7], [4, 4, 7]]
    """
    gap = masked_index.diff() != 1
    edge = gap.new_ones(1)
    first = torch.where(torch.cat([edge, gap]), masked_index, 0).cummax(0).values
    last = torch.where(torch.cat([gap, edge]), masked_index, torch.iinfo(torch.int64).max)
    return first, last.flip(0).cummin(0).values.flip(0)


class SpanBoundaryHead(nn.Module):
    """Predicts each token of a masked span from the two tokens around it (Joshi et al. 2020, section 3.2).

    Only training needs it, so it is not part of a checkpoint's model.
    """

    def __init__(self, model: PretrainingModel):
        super().__init__()
        H, E = model.config.hidden_size, model.config.embedding_size
        self.place = nn.Embedding(_PLACES, _PLACE_WIDTH)
        self.first = nn.Linear(2 * H + _PLACE_WIDTH, H)
        self.first_norm = nn.LayerNorm(H, model.config.layer_norm_eps)
        self.second = nn.Linear(H, E)
        self.second_norm = nn.LayerNorm(E, model.config.layer_norm_eps)
        initialize(self, model.config.initializer_range)

    def forward(self, hidden: Tensor, masked_index: Tensor) -> Tensor:
        """States for the decoder, [n, E] and some filler, from hidden states [T, H]."""
        first, last = span_bounds(masked_index)
        place = self.place((masked_index - first).clamp_max(_PLACES - 1))
        around = torch.cat([hidden[first - 1], hidden[last + 1], place.to(hidden.dtype)], dim=-1)
        states = self.first_norm(nn.functional.gelu(self.first(with_filler(around))))
        return self.second_norm(nn.functional.gelu(self.second(states)))


class PretrainingObjective(nn.Module):
    """A model and the objectives it is trained with."""

    def __init__(self, model: PretrainingModel, *, span_boundary: bool = False, contrast: bool = False):
        super().__init__()
        self.model, self.contrast = model, contrast
        if contrast:
            ensure_dropout(model.encoder)
        self.boundary = SpanBoundaryHead(model) if span_boundary else None

    def forward(self, batch: Batch) -> PretrainingOutput:
        if self.boundary is None and not self.contrast:
            return self.model(batch)
        contrast_loss = boundary_loss = None
        index, labels = batch.masked()
        if self.contrast:
            both = with_copies(batch)
            hidden, copies = self.model.encoder(both).split([batch.tokens, 2 * batch.tokens])
            contrast_loss = contrastive_loss(copies, both.cu_seqlens[batch.sequences :] - batch.tokens)
        else:
            hidden = self.model.encoder(batch)
        if self.boundary is not None:
            losses, _ = self.model.decoder_losses(self.boundary(hidden, index), labels)
            boundary_loss = losses.sum() / max(len(losses), 1)
        output = self.model.losses(hidden[index], hidden[batch.cu_seqlens[:-1]], batch)
        return replace(output, boundary_loss=boundary_loss, contrast_loss=contrast_loss)
