"""Optimiser and learning-rate schedule."""

from __future__ import annotations

import torch
from torch import nn

# reference point of the default rates: AdamW at this many tokens a batch; other sizes scale by the square
# root
REFERENCE_BATCH_TOKENS = 4096
# with 1e-3 a small ALBERT reaches the same MLM loss, but its sequences' vectors fall together: fine-tuned, it
# stays at
# chance, where one trained with 3e-4 learns the task
RATE_FROM_SCRATCH = 3e-4
# what transformers' own MLM example takes at 8 sequences of 512 tokens
RATE_FROM_CHECKPOINT = 5e-5


def default_learning_rate(batch_tokens: int, *, from_checkpoint: bool) -> float:
    """A rate that fits the batch: Krizhevsky 2014's square-root rule from a rate tried at the reference
    batch.
    """
    base = RATE_FROM_CHECKPOINT if from_checkpoint else RATE_FROM_SCRATCH
    return base * (batch_tokens / REFERENCE_BATCH_TOKENS) ** 0.5


def adamw(model: nn.Module, learning_rate: float, weight_decay: float = 0.01) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019); no decay on biases and LayerNorm (Devlin et al. 2019, appendix
    A.2).
    """
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True)


def linear_schedule(step: int, steps: int, warmup_steps: int) -> float:
    """Share of the full rate at a step counted from 0: up to 1 over the warm-up, then down to 0 at the end.

    >>> [linear_schedule(step, 10, 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return (steps - step) / max(steps - warmup_steps, 1)
