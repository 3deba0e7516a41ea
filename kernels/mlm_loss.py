"""Masked-language-model loss: decode masked states with the tied word table and take the cross-entropy.

loss = logsumexp(z) - z[label] with z = x W^T + b, x a state and W the word table (Devlin et al. 2019, section
3.1). The logsumexp runs over tiles of logits that are never stored, and the gradient recomputes them (Wijmans
et al. 2024, without its gradient filter). n = masked positions, E = embedding size, V = vocabulary.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from kernels.dispatch import (
    Constants,
    autocast,
    handwritten,
    on_device,
    operator,
    triton,
    use_tensor_cores,
)
from kernels.mlm_loss_cpu import IGNORED, mlm_loss_on_cpu
from kernels.mlm_loss_kernels import (
    mlm_loss_bwd_states_kernel,
    mlm_loss_bwd_table_kernel,
    mlm_loss_combine_kernel,
    mlm_loss_fwd_kernel,
)
from kernels.tuning import MULTIPROCESSORS, Launch, loss_tiles

# with wider states the product is compute-bound: cuBLAS in chunks of rows is then the better kernel
MAX_FUSED_WIDTH = 128
CHUNK = 1024
MOST_PARTS, OVERHEAD = 16, 4


def mlm_loss_reference(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `mlm_loss` with the logits stored."""
    logits = linear(states, weight.to(states.dtype), bias.to(states.dtype))  # [n, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    return loss, logits.argmax(-1)


def _outputs(states: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    n, device = states.shape[0], states.device
    loss, lse = (torch.empty(n, dtype=torch.float32, device=device) for _ in range(2))
    return loss, torch.empty(n, dtype=torch.int64, device=device), lse


def forward_in_chunks(
    states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute loss, prediction and logsumexp [n] with the logits of CHUNK rows at a time."""
    loss, predicted, lse = _outputs(states)
    for start in range(0, states.shape[0], CHUNK):
        at = slice(start, start + CHUNK)
        logits = (states[at] @ weight.t()).float() + bias.float()
        lse[at], predicted[at] = logits.logsumexp(-1), logits.argmax(-1)
        counted = labels[at] != IGNORED
        target = logits.gather(1, labels[at].where(counted, 0)[:, None]).squeeze(1)
        loss[at] = (lse[at] - target).where(counted, 0.0)
    return loss, predicted, lse


def backward_in_chunks(
    dloss: Tensor, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of states, weight and bias, the last two in fp32, CHUNK rows at a time."""
    dstates = torch.empty_like(states)
    dweight, dbias = (torch.zeros_like(x, dtype=torch.float32) for x in (weight, bias))
    for start in range(0, states.shape[0], CHUNK):
        at = slice(start, start + CHUNK)
        x, counted = states[at], labels[at] != IGNORED
        gradient = dloss[at].where(counted, 0.0)
        dlogits = torch.exp((x @ weight.t()).float() + bias.float() - lse[at, None])
        dlogits *= gradient[:, None]
        dlogits.scatter_add_(1, labels[at].where(counted, 0)[:, None], -gradient[:, None])
        dbias += dlogits.sum(0)
        dlogits = dlogits.to(x.dtype)
        dstates[at] = dlogits @ weight
        dweight += dlogits.t() @ x
    return dstates, dweight, dbias


def _constants(states: Tensor, launch: Launch) -> Constants:
    E = states.shape[1]
    widths = {"E": E, "BLOCK_E": max(16, triton.next_power_of_2(E))}
    return {**widths, "ROWS": launch.rows, "BLOCK": launch.block, **launch.options}


@lru_cache(4096)
def _parts(rows: int, V: int, block: int) -> tuple[int, int]:
    """Choose into how many parts to cut the vocabulary, and their size, so that waves of programs are full.

    A program takes the time of its blocks and of OVERHEAD more; registers allow one at a time.
    """
    blocks = triton.cdiv(V, block)

    def cost(parts: int) -> int:
        return triton.cdiv(max(rows, 1) * parts, MULTIPROCESSORS) * (triton.cdiv(blocks, parts) + OVERHEAD)

    parts = min(range(1, MOST_PARTS + 1), key=cost)
    return parts, triton.cdiv(blocks, parts) * block


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _gradients(ctx, dloss, _predicted, _lse):
    return *_backward(dloss, *ctx.saved_tensors), None


@operator("jixu::mlm_loss", _outputs, _save, _gradients)
def _forward(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (n, E), V = states.shape, weight.shape[0]
    weight = weight.to(states.dtype)
    if E > MAX_FUSED_WIDTH:
        return forward_in_chunks(states, weight, bias, labels)
    loss, predicted, lse = _outputs(states)
    if n:
        launch = loss_tiles(states.device).forward
        tiles = triton.cdiv(n, launch.rows)
        parts, part_size = _parts(tiles, V, launch.block)
        highest, total = (torch.empty(parts, n, dtype=torch.float32, device=states.device) for _ in range(2))
        best = torch.empty(parts, n, dtype=torch.int32, device=states.device)
        with on_device(states):
            mlm_loss_fwd_kernel[(tiles, parts)](
                highest, total, best, states, weight, bias, n, V, part_size, **_constants(states, launch)
            )
            mlm_loss_combine_kernel[(triton.cdiv(n, 16),)](
                loss, predicted, lse, highest, total, best, states, weight, bias, labels, n, V,
                parts, E=E, BLOCK_E=triton.next_power_of_2(E), ROWS=16, num_warps=4,
            )  # fmt: skip
    return loss, predicted, lse


@operator("jixu::mlm_loss_backward", lambda dloss, *inputs: tuple(map(torch.empty_like, inputs[:3])))
def _backward(
    dloss: Tensor, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (n, E), V = states.shape, weight.shape[0]
    table, dloss = weight.to(states.dtype), dloss.contiguous()
    if E > MAX_FUSED_WIDTH:
        dstates, dweight, dbias = backward_in_chunks(dloss, states, table, bias, labels, lse)
        return dstates, dweight.to(weight.dtype), dbias.to(bias.dtype)
    dweight = torch.empty(V, E, dtype=torch.float32, device=states.device)
    dbias = torch.empty(V, dtype=torch.float32, device=states.device)
    tiles = loss_tiles(states.device)
    rows = triton.cdiv(n, tiles.states.rows)
    parts, part_size = _parts(rows, V, tiles.states.block)
    partial = torch.empty(parts, n, E, dtype=torch.float32, device=states.device)
    arguments = (dloss, states, table, bias, labels, lse, n, V)
    with on_device(states):
        if n:
            mlm_loss_bwd_states_kernel[(rows, parts)](
                partial, *arguments, part_size, **_constants(states, tiles.states)
            )
        mlm_loss_bwd_table_kernel[(triton.cdiv(V, tiles.table.rows),)](
            dweight, dbias, *arguments, **_constants(states, tiles.table)
        )
    return partial.sum(0).to(states.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype)


def mlm_loss(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss and the prediction of every masked position.

    states [n, E]; weight [V, E] the word table; bias [V]; labels [n] int64 in 0..V-1, or IGNORED.
    Returns the loss [n] fp32 (0 where ignored) and the likeliest token [n] int64 (the first of equals), which
    carries no gradient. The table is read in the states' dtype; its gradient has the table's.

    No [n, V] is stored: up to E = MAX_FUSED_WIDTH logits live in tiles, above it in fp32 for CHUNK rows at a
    time. The backward pass saves the inputs and one fp32 number per row.
    """
    if not use_tensor_cores(states):
        if handwritten(states):
            return mlm_loss_on_cpu(autocast(states), weight, bias, labels)
        return mlm_loss_reference(states, weight, bias, labels)
    states = autocast(states).contiguous()
    return _forward(states, weight.contiguous(), bias.contiguous(), labels.contiguous())[:2]
