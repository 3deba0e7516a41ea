"""Kernels of `kernels.attention`: one program owns TILE rows of one head of one sequence.

With s = q k^T * scale, p = exp(s - lse) and delta = sum(dout * out): dv = p^T dout, ds = p * (dout v^T -
delta), dq = ds k * scale, dk = ds^T q * scale (Dao et al. 2022, appendix B). Scores are in units of log2(e),
for exp2. No atomics: a row's owner sums its gradient in the order of the sequence, so runs agree bit for bit.
"""

from __future__ import annotations

from kernels.dispatch import tl, triton
from kernels.dropout import keep, row_keys


@triton.jit
def load_rows(ptr, rows, length, STRIDE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load rows [R, BLOCK_D] of a head or a table, zero outside of the sequence or table and past D."""
    d = tl.arange(0, BLOCK_D)
    inside = rows[:, None] < length
    if D < BLOCK_D:
        inside = inside & (d[None, :] < D)
    return tl.load(ptr + rows[:, None] * STRIDE + d[None, :], mask=inside, other=0.0)


@triton.jit
def _store_rows(ptr, x, rows, length, STRIDE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    inside = rows[:, None] < length
    if D < BLOCK_D:
        inside = inside & (d[None, :] < D)
    tl.store(ptr + rows[:, None] * STRIDE + d[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _program(cu_seqlens_ptr, schedule_ptr, N: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr):
    """Look up the program's head, its sequence's first token and length, and its first row.

    A tile of the schedule is the work of SPLIT programs. Those without work get a row past the length.
    """
    program, head = tl.program_id(0) // N, tl.program_id(0) % N
    entry = schedule_ptr + 2 * (program // SPLIT)
    sequence = tl.load(entry)
    start = tl.load(cu_seqlens_ptr + tl.maximum(sequence, 0))
    length = tl.where(sequence < 0, 0, tl.load(cu_seqlens_ptr + tl.maximum(sequence, 0) + 1) - start)
    return head, start, length, (tl.load(entry + 1) * SPLIT + program % SPLIT) * TILE


@triton.jit
def _attend(
    out, total, highest, q, k_ptr, v_ptr, first, length, scale, keys,
    TOKEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DROPOUT: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add a block of keys to the running output, sum and maximum; the latter is of unscaled scores."""
    cols = first + tl.arange(0, BLOCK)
    end = length if MASKED else first + BLOCK
    k = load_rows(k_ptr, cols, end, TOKEN, D, BLOCK_D)
    v = load_rows(v_ptr, cols, end, TOKEN, D, BLOCK_D)
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(cols[None, :] < length, s, float("-inf"))
    higher = tl.maximum(highest, tl.max(s, 1))
    p = tl.exp2(s * scale - (higher * scale)[:, None])
    shrink = tl.exp2((highest - higher) * scale)
    total = total * shrink + tl.sum(p, 1)
    if DROPOUT:
        p = tl.where(keep(keys[:, None], cols[None, :], DROPOUT), p, 0.0)
    out = tl.dot(p.to(v.dtype), v, out * shrink[:, None])
    return out, total, higher


@triton.jit(do_not_specialize=["T"])
def attention_fwd_kernel(
    out_ptr, lse_ptr,                           # out: [T, N, D], [N, T] in units of log2
    q_ptr, k_ptr, v_ptr,                        # in: [T, N, D], strides TOKEN and HEAD
    cu_seqlens_ptr, schedule_ptr, seed_ptr,     # in: [S+1], [tiles, 2], [1]
    T, scale,                                   # scale in units of log2(e)
    N: tl.constexpr, D: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    DROPOUT: tl.constexpr, RESCALE: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, start, length, first_row = _program(cu_seqlens_ptr, schedule_ptr, N, TILE, SPLIT)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, TILE)
    at = start.to(tl.int64) * TOKEN + head * HEAD
    q = load_rows(q_ptr + at, rows, length, TOKEN, D, BLOCK_D)
    highest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    out = tl.zeros([TILE, BLOCK_D], tl.float32)
    keys = row_keys(seed_ptr, (start + rows) * N + head) if DROPOUT else rows
    whole = length // BLOCK * BLOCK  # whole blocks first, without a mask over the keys
    for first in range(0, whole, BLOCK):
        out, total, highest = _attend(
            out, total, highest, q, k_ptr + at, v_ptr + at, first, length, scale, keys,
            TOKEN, D, BLOCK_D, DROPOUT, BLOCK, False,
        )  # fmt: skip
    for first in range(whole, length, BLOCK):
        out, total, highest = _attend(
            out, total, highest, q, k_ptr + at, v_ptr + at, first, length, scale, keys,
            TOKEN, D, BLOCK_D, DROPOUT, BLOCK, True,
        )  # fmt: skip
    out = out * (RESCALE / total)[:, None]
    _store_rows(out_ptr + (start.to(tl.int64) * N + head) * D, out, rows, length, N * D, D, BLOCK_D)
    lse = highest * scale + tl.log2(total)
    tl.store(lse_ptr + head.to(tl.int64) * T + start + rows, lse, mask=rows < length)


@triton.jit
def _row_deltas(out_ptr, dout, rows, length, STRIDE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute delta = sum(dout * out) of each row."""
    out = load_rows(out_ptr, rows, length, STRIDE, D, BLOCK_D)
    return tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)


@triton.jit(do_not_specialize=["T"])
def attention_bwd_queries_kernel(
    dq_ptr, delta_ptr,                          # out: [T, N, D], strides GRAD_TOKEN and GRAD_HEAD; [N, T]
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, cu_seqlens_ptr, schedule_ptr, seed_ptr, T, scale,
    N: tl.constexpr, D: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    DROPOUT: tl.constexpr, RESCALE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    GRAD_TOKEN: tl.constexpr, GRAD_HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, start, length, first_row = _program(cu_seqlens_ptr, schedule_ptr, N, TILE, SPLIT)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, TILE)
    at = start.to(tl.int64) * TOKEN + head * HEAD
    out_at = (start.to(tl.int64) * N + head) * D
    row_at = head.to(tl.int64) * T + start
    q = load_rows(q_ptr + at, rows, length, TOKEN, D, BLOCK_D)
    dout = load_rows(dout_ptr + out_at, rows, length, N * D, D, BLOCK_D)
    delta = _row_deltas(out_ptr + out_at, dout, rows, length, N * D, D, BLOCK_D)
    lse = tl.load(lse_ptr + row_at + rows, mask=rows < length, other=0.0)
    keys = row_keys(seed_ptr, (start + rows) * N + head) if DROPOUT else rows
    dq = tl.zeros([TILE, BLOCK_D], tl.float32)
    for first in range(0, length, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        k = load_rows(k_ptr + at, cols, length, TOKEN, D, BLOCK_D)
        v = load_rows(v_ptr + at, cols, length, TOKEN, D, BLOCK_D)
        s = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        # a key past the end scores 0, far above an lse that is very negative: 2**big * 0 is NaN
        p = tl.where(cols[None, :] < length, tl.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(dout, tl.trans(v))
        if DROPOUT:
            dp = tl.where(keep(keys[:, None], cols[None, :], DROPOUT), dp * RESCALE, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    grad_at = start.to(tl.int64) * GRAD_TOKEN + head * GRAD_HEAD
    _store_rows(dq_ptr + grad_at, dq * scale, rows, length, GRAD_TOKEN, D, BLOCK_D)
    tl.store(delta_ptr + row_at + rows, delta, mask=rows < length)


@triton.jit(do_not_specialize=["T"])
def attention_bwd_keys_kernel(
    dq_ptr, dk_ptr, dv_ptr,                     # out: [T, N, D], strides GRAD_TOKEN and GRAD_HEAD
    delta_ptr,                                  # in: [N, T], None if WHOLE
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, cu_seqlens_ptr, schedule_ptr, seed_ptr, T, scale,
    N: tl.constexpr, D: tl.constexpr, TOKEN: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    DROPOUT: tl.constexpr, RESCALE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    GRAD_TOKEN: tl.constexpr, GRAD_HEAD: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,                        # a tile holds whole sequences: compute dq and delta here
):  # fmt: skip
    head, start, length, first_col = _program(cu_seqlens_ptr, schedule_ptr, N, TILE, SPLIT)
    if first_col >= length:
        return
    cols = first_col + tl.arange(0, TILE)
    at = start.to(tl.int64) * TOKEN + head * HEAD
    out_at = (start.to(tl.int64) * N + head) * D
    row_at = head.to(tl.int64) * T + start
    grad_at = start.to(tl.int64) * GRAD_TOKEN + head * GRAD_HEAD
    k = load_rows(k_ptr + at, cols, length, TOKEN, D, BLOCK_D)
    v = load_rows(v_ptr + at, cols, length, TOKEN, D, BLOCK_D)
    dk = tl.zeros([TILE, BLOCK_D], tl.float32)
    dv = tl.zeros([TILE, BLOCK_D], tl.float32)
    for first in range(0, length, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        q = load_rows(q_ptr + at, rows, length, TOKEN, D, BLOCK_D)
        dout = load_rows(dout_ptr + out_at, rows, length, N * D, D, BLOCK_D)
        lse = tl.load(lse_ptr + row_at + rows, mask=rows < length, other=0.0)
        if WHOLE:
            delta = _row_deltas(out_ptr + out_at, dout, rows, length, N * D, D, BLOCK_D)
        else:
            delta = tl.load(delta_ptr + row_at + rows, mask=rows < length, other=0.0)
        # transposed: keys by queries
        s = tl.dot(k, tl.trans(q)) * (scale * 1.4426950408889634)
        p = tl.exp2(s - lse[None, :])
        if WHOLE:  # otherwise keys past the end reach nothing that is stored
            p = tl.where(cols[:, None] < length, p, 0.0)
        dp = tl.dot(v, tl.trans(dout))
        dropped = p
        if DROPOUT:
            keys = row_keys(seed_ptr, (start + rows) * N + head)
            kept = keep(keys[None, :], cols[:, None], DROPOUT)
            dropped = tl.where(kept, p * RESCALE, 0.0)
            dp = tl.where(kept, dp * RESCALE, 0.0)
        dv = tl.dot(dropped.to(dout.dtype), dout, dv)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
        if WHOLE:
            dq = tl.dot(tl.trans(ds), k)
            _store_rows(dq_ptr + grad_at, dq * scale, rows, length, GRAD_TOKEN, D, BLOCK_D)
    _store_rows(dk_ptr + grad_at, dk * scale, cols, length, GRAD_TOKEN, D, BLOCK_D)
    _store_rows(dv_ptr + grad_at, dv, cols, length, GRAD_TOKEN, D, BLOCK_D)
