"""Masked-language-model loss on a CPU: logits, loss and the logits' gradient in one pass.

The gradient of the logits follows from their softmax, so the forward pass overwrites the logits with it and
the backward pass is two products. A few rows at a time, so that their fp32 intermediates stay in the caches.
n = masked positions, E = embedding size, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

IGNORED = -100  # label of a row that does not count, as in torch's cross_entropy
PIECE_NUMBERS = 1 << 19  # logits processed at once, 2 MiB in fp32
PIECES = 16  # pieces per product, 16 MiB in bf16


def _lose(logits: Tensor, labels: Tensor, work: Tensor) -> tuple[Tensor, Tensor]:
    """Compute loss and prediction [n, 1] of logits [n, V], overwritten by their gradient; work [2, n, V]."""
    z = work[0].copy_(logits)
    largest, predicted = z.max(1, keepdim=True)
    counted = labels != IGNORED
    label = labels.where(counted, 0)
    target = z.gather(1, label)
    probabilities = torch.softmax(z, 1, out=work[1])
    # the largest probability is at least 1/V: its logarithm is safe
    lse = largest - probabilities.gather(1, predicted).log()
    loss = (lse - target).where(counted, 0.0)
    probabilities.scatter_add_(1, label, torch.full_like(target, -1.0))
    logits.copy_(probabilities)
    return loss, predicted


class _MlmLoss(torch.autograd.Function):
    """Compute `kernels.mlm_loss` of states [n, E], weight [V, E], bias [V], labels [n], in fp32 or more."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        n, V = states.shape[0], weight.shape[0]
        table, offset = weight.to(states.dtype), bias.to(states.dtype)
        loss = states.new_empty(n, 1, dtype=torch.promote_types(states.dtype, torch.float32))
        predicted = torch.empty(n, 1, dtype=torch.int64, device=states.device)
        products, rows = [], max(1, PIECE_NUMBERS // V)
        # allocated once: memory that is freed and allocated again has to be mapped again
        work = loss.new_empty(2, rows, V)
        for part in range(0, n, rows * PIECES):
            products.append(linear(states[part : part + rows * PIECES], table, offset))
            for first in range(part, min(part + rows * PIECES, n), rows):
                at = slice(first, min(first + rows, n))
                piece = products[-1][at.start - part : at.stop - part]
                pair = _lose(piece, labels[at, None], work[:, : len(piece)])
                loss[at], predicted[at] = pair
        ctx.save_for_backward(states, table, (labels != IGNORED)[:, None], *products)
        ctx.dtypes = weight.dtype, bias.dtype
        predicted = predicted.squeeze(1)
        ctx.mark_non_differentiable(predicted)
        return loss.squeeze(1), predicted

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)
    def backward(ctx, dloss: Tensor, _predicted: Tensor):  # type: ignore[override]  # as in attention_cpu
        states, table, counted, *products = ctx.saved_tensors
        # a row's gradient is dloss times the saved row: scale the narrower factor of each product
        by_row = dloss[:, None].where(counted, 0.0)
        scaled = (states * by_row).to(states.dtype)
        dstates = torch.empty_like(states)
        dweight, dbias = torch.zeros_like(table), table.new_zeros(1, table.shape[0])
        begin = 0
        for dlogits in products:
            at = slice(begin, begin + len(dlogits))
            dstates[at] = (dlogits @ table) * by_row[at]
            dweight.addmm_(dlogits.t(), scaled[at])
            dbias.addmm_(by_row[at].t().to(table.dtype), dlogits)
            begin = at.stop
        return dstates, dweight.to(ctx.dtypes[0]), dbias[0].to(ctx.dtypes[1]), None


mlm_loss_on_cpu = _MlmLoss.apply
