"""Kernels of `kernels.mlm_loss`; logits, in units of log2(e) for exp2, exist one tile at a time.

With p = exp(logits - lse): dlogits = dloss * (p - onehot(label)). The gradients of the states
and of the table each recompute the logits, so that every row has one owner: no atomics, no [n, V] tensor.
"""

from __future__ import annotations

from kernels.attention_kernels import load_rows
from kernels.dispatch import tl, triton


@triton.jit(do_not_specialize=["n", "V"])
def mlm_loss_fwd_kernel(
    highest_ptr, total_ptr, best_ptr,           # out: [parts, n]: logsumexp as two numbers, and the arg-max
    x_ptr, w_ptr, bias_ptr,                     # in: [n, E], [V, E], [V]
    n, V, part_size,
    E: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    x = load_rows(x_ptr, rows.to(tl.int64), n, E, E, BLOCK_E)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    best = tl.zeros([ROWS], tl.int32)
    for first in range(part * part_size, tl.minimum((part + 1) * part_size, V), BLOCK):
        cols = first + tl.arange(0, BLOCK)
        w = load_rows(w_ptr, cols.to(tl.int64), V, E, E, BLOCK_E)
        # a column past the vocabulary gets -inf: adds nothing to the sum, is never the largest
        bias = tl.load(bias_ptr + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
        logits = tl.dot(x, tl.trans(w)) + bias[None, :]
        logits *= 1.4426950408889634
        largest = tl.max(logits, 1)
        where = tl.min(tl.where(logits == largest[:, None], cols[None, :], V), 1)
        best = tl.where(largest > highest, where, best)
        higher = tl.maximum(highest, largest)
        total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(logits - higher[:, None]), 1)
        highest = higher
    at = part.to(tl.int64) * n + rows
    tl.store(highest_ptr + at, highest, mask=rows < n)
    tl.store(total_ptr + at, total, mask=rows < n)
    tl.store(best_ptr + at, best, mask=rows < n)


@triton.jit(do_not_specialize=["n", "V"])
def mlm_loss_combine_kernel(
    loss_ptr, predicted_ptr, lse_ptr,           # out: [n]
    highest_ptr, total_ptr, best_ptr,           # in: [PARTS, n]
    x_ptr, w_ptr, bias_ptr, labels_ptr, n, V, PARTS,
    E: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    best = tl.zeros([ROWS], tl.int32)
    for part in range(PARTS):
        largest = tl.load(highest_ptr + part * n + rows, mask=inside, other=0.0)
        best = tl.where(largest > highest, tl.load(best_ptr + part * n + rows, mask=inside, other=0), best)
        highest = tl.maximum(highest, largest)
    total = tl.zeros([ROWS], tl.float32)
    for part in range(PARTS):
        largest = tl.load(highest_ptr + part * n + rows, mask=inside, other=0.0)
        total += tl.load(total_ptr + part * n + rows, mask=inside, other=0.0) * tl.exp2(largest - highest)
    lse = (highest + tl.log2(total)) * 0.6931471805599453
    label = tl.load(labels_ptr + rows, mask=inside, other=-100)
    valid = (label >= 0) & (label < V)
    e = tl.arange(0, BLOCK_E)
    x = load_rows(x_ptr, rows.to(tl.int64), n, E, E, BLOCK_E).to(tl.float32)
    w = tl.load(w_ptr + label[:, None] * E + e[None, :], mask=valid[:, None] & (e[None, :] < E), other=0.0)
    # an invalid label gives NaN, not a plausible loss
    bias = tl.load(bias_ptr + label, mask=valid, other=float("nan")).to(tl.float32)
    loss = lse - (tl.sum(x * w.to(tl.float32), 1) + bias)
    tl.store(loss_ptr + rows, tl.where(label == -100, 0.0, loss), mask=inside)
    tl.store(predicted_ptr + rows, best.to(tl.int64), mask=inside)
    tl.store(lse_ptr + rows, lse, mask=inside)


@triton.jit(do_not_specialize=["n", "V"])
def mlm_loss_bwd_states_kernel(
    dx_ptr,                                     # out: [parts, n, E], summed over parts later
    dloss_ptr, x_ptr, w_ptr, bias_ptr, labels_ptr, lse_ptr, n, V, part_size,
    E: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    inside = rows < n
    x = load_rows(x_ptr, rows.to(tl.int64), n, E, E, BLOCK_E)
    lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
    label = tl.load(labels_ptr + rows, mask=inside, other=-100).to(tl.int32)
    dloss = tl.load(dloss_ptr + rows, mask=inside, other=0.0)
    dloss = tl.where(label == -100, 0.0, dloss)
    dx = tl.zeros([ROWS, BLOCK_E], tl.float32)
    for first in range(part * part_size, tl.minimum((part + 1) * part_size, V), BLOCK):
        cols = first + tl.arange(0, BLOCK)
        w = load_rows(w_ptr, cols.to(tl.int64), V, E, E, BLOCK_E)
        bias = tl.load(bias_ptr + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
        logits = tl.dot(x, tl.trans(w)) + bias[None, :]
        p = tl.exp2((logits - lse[:, None]) * 1.4426950408889634)
        dlogits = p - tl.where(cols[None, :] == label[:, None], 1.0, 0.0)
        dx = tl.dot(dlogits.to(w.dtype), w, dx)
    e = tl.arange(0, BLOCK_E)
    at = (part.to(tl.int64) * n + rows)[:, None] * E + e[None, :]
    tl.store(dx_ptr + at, dx * dloss[:, None], mask=inside[:, None] & (e[None, :] < E))


@triton.jit(do_not_specialize=["n", "V"])
def mlm_loss_bwd_table_kernel(
    dw_ptr, dbias_ptr,                          # out: [V, E], [V]
    dloss_ptr, x_ptr, w_ptr, bias_ptr, labels_ptr, lse_ptr, n, V,
    E: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    w = load_rows(w_ptr, tokens.to(tl.int64), V, E, E, BLOCK_E)
    bias = tl.load(bias_ptr + tokens, mask=tokens < V, other=0.0).to(tl.float32)
    dw = tl.zeros([ROWS, BLOCK_E], tl.float32)
    dbias = tl.zeros([ROWS], tl.float32)
    for first in range(0, n, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        x = load_rows(x_ptr, rows.to(tl.int64), n, E, E, BLOCK_E)
        # makes every probability of a row past the end 0, whatever the bias
        lse = tl.load(lse_ptr + rows, mask=rows < n, other=float("inf"))
        label = tl.load(labels_ptr + rows, mask=rows < n, other=-100).to(tl.int32)
        dloss = tl.load(dloss_ptr + rows, mask=rows < n, other=0.0)
        dloss = tl.where(label == -100, 0.0, dloss)
        # transposed: tokens by rows
        logits = tl.dot(w, tl.trans(x)) + bias[:, None]
        p = tl.exp2((logits - lse[None, :]) * 1.4426950408889634)
        dlogits = (p - tl.where(tokens[:, None] == label[None, :], 1.0, 0.0)) * dloss[None, :]
        dw = tl.dot(dlogits.to(x.dtype), x, dw)
        dbias += tl.sum(dlogits, 1)
    e = tl.arange(0, BLOCK_E)
    at = tokens.to(tl.int64)[:, None] * E + e[None, :]
    tl.store(dw_ptr + at, dw, mask=(tokens[:, None] < V) & (e[None, :] < E))
    tl.store(dbias_ptr + tokens, dbias, mask=tokens < V)
