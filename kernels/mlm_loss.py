"""Masked-language-model loss: decode masked states with the tied word table and take the cross-entropy.

Devlin et al. 2019, section 3.1. n = masked positions, E = embedding size, V = vocabulary.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, linear

IGNORED = -100  # label of a row that does not count, as in torch.nn.functional.cross_entropy


def mlm_loss_reference(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As `mlm_loss`, with the logits stored."""
    logits = linear(states, weight.to(states.dtype), bias.to(states.dtype)).float()  # [n, V]
    return cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED), logits.argmax(-1)


def mlm_loss(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and prediction of every masked position.

    states [n, E]; weight [V, E] the word table; bias [V]; labels [n] int64 in 0..V-1, or IGNORED.
    Returns the loss [n] fp32 (0 where ignored) and the likeliest token [n] int64, which carries no gradient.
    """
    return mlm_loss_reference(states, weight, bias, labels)
