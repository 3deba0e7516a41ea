"""How much each layer changes its input (Lan et al. 2020, figure 2).

A shared layer that is applied repeatedly may converge or not; the distance and the angle between its input
and output show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from albert.model import Batch, Encoder


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Means over the tokens of a batch."""

    layer: int  # from 1
    distance: float  # L2 norm of output - input
    cosine: float  # of the angle between input and output


@torch.no_grad()
def measure_layer_changes(encoder: Encoder, batch: Batch) -> tuple[LayerChange, ...]:
    """Distance and cosine between the input and the output of every layer on a batch."""
    was_training = encoder.training
    encoder.eval()
    states = [state.float() for state in encoder.hidden_states(batch)]
    encoder.train(was_training)
    return tuple(
        LayerChange(
            number,
            (after - before).norm(dim=-1).mean().item(),
            F.cosine_similarity(before, after, dim=-1).mean().item(),
        )
        for number, (before, after) in enumerate(zip(states[:-1], states[1:], strict=True), 1)
    )
