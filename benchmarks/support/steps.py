"""Pretraining steps on a CPU, their operations, and the speed of their products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from albert.model import AlbertConfig, Batch, PretrainingModel, pack
from albert.optim import adamw
from benchmarks.support.alternating import Work

MASKED_SHARE = 0.15


def needed_flops(config: AlbertConfig, tokens: float, length: float, rows: float, masked: float) -> float:
    """Count a step's operations in matrix products: forward, and twice that backward.

    After the last layer's attention only `rows` tokens count, in the decoder only `masked` ones.
    """
    H, E, F = config.hidden_size, config.embedding_size, config.intermediate_size
    before = 6 * H * H + 4 * length * H  # queries, keys and values, scores and mixing, a token
    after = 2 * H * H + 4 * H * F
    layers = config.depth * before * tokens + after * ((config.depth - 1) * tokens + rows)
    return 3 * (layers + 2 * E * H * tokens + masked * (2 * H * E + 2 * E * config.vocab_size))


def pretraining_step(config: AlbertConfig, *, compiled: bool = False) -> Callable[[Batch], Tensor]:
    """Return a function that trains a model on a batch as `albert.pretraining` does and returns the loss."""
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    optimizer = adamw(model, 1e-4)
    forward = torch.compile(model, dynamic=False) if compiled else model

    def step(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def full_batch(sequences: int, length: int, vocab_size: int) -> Batch:
    """Draw random tokens in sequences of one length, 15% of them masked."""
    torch.manual_seed(1)
    batch = pack(torch.randint(5, vocab_size, (sequences, length)).tolist())
    masked = torch.randperm(batch.tokens)[: max(1, int(MASKED_SHARE * batch.tokens))].sort().values
    sop_labels = torch.randint(0, 2, (sequences,))
    return replace(batch, masked_index=masked, masked_labels=batch.input_ids[masked], sop_labels=sop_labels)


def ceiling(config: AlbertConfig, tokens: int) -> Work:
    """Return the layer's bf16 products, forward and backward, as work counted in operations."""
    H, F = config.hidden_size, config.intermediate_size
    shapes = [(H, 3 * H), (H, H), (H, F), (F, H)]
    operands = [
        tuple(torch.randn(shape, dtype=torch.bfloat16) for shape in ((tokens, K), (N, K), (tokens, N)))
        for K, N in shapes
    ]

    def run() -> float:
        for x, weight, gradient in operands:
            torch.nn.functional.linear(x, weight), gradient @ weight, gradient.t() @ x
        return sum(6.0 * tokens * K * N for K, N in shapes)

    return run
