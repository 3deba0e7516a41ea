"""Pretraining steps on random batches, and their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from albert.model import AlbertConfig, Batch, encoder_operations, pack
from albert.optim import adamw

MASKED_SHARE = 0.15


def training_flops(config: AlbertConfig, lengths: Sequence[int], masked: int) -> float:
    """FLOPs of a step: three forward passes' worth; real tokens, and the decoder on masked positions only.

    The last layer's part behind its attention counts for masked and first tokens only: no more is needed.
    """
    H, E = config.hidden_size, config.embedding_size
    encoder = sum(n * encoder_operations(config, n) for n in lengths)
    spared = (sum(lengths) - masked - len(lengths)) * (2 * H * H + 4 * H * config.intermediate_size)
    head = masked * (2 * H * E + 2 * E * config.vocab_size)
    return 3 * (encoder - spared + head)


def random_batch(lengths: Sequence[int], vocabulary: int, device: str = "cpu") -> Batch:
    """Draw a batch of random tokens, 15% of them masked, with sentence orders."""
    ids = torch.randint(5, vocabulary, (sum(lengths),)).split(list(lengths))
    batch = pack([row.tolist() for row in ids], [[0] * (n - n // 2) + [1] * (n // 2) for n in lengths])
    masked = torch.randperm(batch.tokens)[: max(1, int(MASKED_SHARE * batch.tokens))].sort().values
    orders = torch.randint(2, (len(lengths),))
    labels = batch.input_ids[masked]
    return replace(batch, masked_index=masked, masked_labels=labels, sop_labels=orders).to(device)


def training_step(
    model: nn.Module, forward: Callable[..., Any] | None = None, *, half: bool = True, **settings: bool
) -> Callable[..., Tensor]:
    """Make a step as the trainer takes it: both passes under autocast to bf16, clipping and AdamW.

    It takes the arguments of `forward`, by default the model, and returns the loss.
    """
    optimizer, device = adamw(model, 1e-4), next(model.parameters()).device.type
    forward = model if forward is None else forward  # a compiled module has no truth value
    for group in optimizer.param_groups:
        group |= settings

    def step(*inputs: object, **named: object) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = forward(*inputs, **named).loss
        optimizer.zero_grad(set_to_none=not settings)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step
