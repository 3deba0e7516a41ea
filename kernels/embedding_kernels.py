"""Kernels of `kernels.embedding`: gather, sum and normalise rows; sum gradients into a table.

The sum into a table is deterministic and balanced: token ids are sorted and cut into slices of a fixed
length, each summed by one program. A run of one id that crosses slices, such as [MASK]'s, leaves a partial
sum per slice, and a second kernel adds those up in order.
"""

from __future__ import annotations

from kernels.dispatch import tl, triton
from kernels.layer_norm import normalise, normalise_backward


@triton.jit
def _sum_rows(
    word_ptr, ids_ptr, type_ptr, type_ids_ptr, position_ptr, position_ids_ptr, rows, T, W: tl.constexpr,
    BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Sum word, type and position rows [R, BLOCK_W] in fp32; without ids, `word` holds one row per token."""
    cols = tl.arange(0, BLOCK_W)
    inside = (rows[:, None] < T) & (cols[None, :] < W)
    word = rows.to(tl.int64)
    if ids_ptr is not None:
        word = tl.load(ids_ptr + rows, mask=rows < T, other=0)
    x = tl.load(word_ptr + word[:, None] * W + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    kind = tl.load(type_ids_ptr + rows, mask=rows < T, other=0)
    x += tl.load(type_ptr + kind[:, None] * W + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    place = tl.load(position_ids_ptr + rows, mask=rows < T, other=0)
    x += tl.load(position_ptr + place[:, None] * W + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["T"])
def embed_norm_fwd_kernel(
    y_ptr, mean_ptr, rstd_ptr,                  # out: [T, W], [T], [T]
    word_ptr, ids_ptr, type_ptr, type_ids_ptr, position_ptr, position_ids_ptr, weight_ptr, bias_ptr,
    T, eps, W: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.arange(0, BLOCK_W)
    x = _sum_rows(
        word_ptr, ids_ptr, type_ptr, type_ids_ptr, position_ptr, position_ids_ptr, rows, T, W, BLOCK_W
    )
    y, mean, rstd = normalise(x, weight_ptr, bias_ptr, eps, W, BLOCK_W)
    at = rows.to(tl.int64)[:, None] * W + cols[None, :]
    inside = (rows[:, None] < T) & (cols[None, :] < W)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < T)
    tl.store(rstd_ptr + rows, rstd, mask=rows < T)


@triton.jit(do_not_specialize=["T"])
def embed_norm_bwd_kernel(
    dx_ptr, dweight_ptr, dbias_ptr,             # out: [T, W], [programs, W] twice
    dy_ptr, mean_ptr, rstd_ptr,
    word_ptr, ids_ptr, type_ptr, type_ids_ptr, position_ptr, position_ids_ptr, weight_ptr,
    T, W: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_W)
    weight = tl.load(weight_ptr + cols, mask=cols < W, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    dbias = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    for first in range(program * BLOCK_R, T, tl.num_programs(0) * BLOCK_R):
        rows = first + tl.arange(0, BLOCK_R)
        x = _sum_rows(
            word_ptr, ids_ptr, type_ptr, type_ids_ptr, position_ptr, position_ids_ptr, rows, T, W, BLOCK_W
        )
        inside = (rows[:, None] < T) & (cols[None, :] < W)
        at = rows.to(tl.int64)[:, None] * W + cols[None, :]
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dx, normed = normalise_backward(dy, x, weight, mean_ptr, rstd_ptr, rows, T, W)
        dweight += dy * normed
        dbias += dy
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dweight_ptr + program * W + cols, tl.sum(dweight, 0), mask=cols < W)
    tl.store(dbias_ptr + program * W + cols, tl.sum(dbias, 0), mask=cols < W)


@triton.jit(do_not_specialize=["T"])
def scatter_slices_kernel(
    table_ptr, partial_ptr,                     # out: [V, W]; [slices, 2, W]: run carried in, carried out
    x_ptr, ids_ptr, order_ptr,                  # in: [T, W]; [T] sorted ids, and the row each came from
    T, W: tl.constexpr, SLICE: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0) * SLICE
    at = begin + tl.arange(0, SLICE)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside = at < T
    ids = tl.load(ids_ptr + at, mask=inside, other=-1)
    order = tl.load(order_ptr + at, mask=inside, other=0)
    within = cols[None, :] < W
    x = tl.load(x_ptr + order[:, None] * W + cols[None, :], mask=inside[:, None] & within, other=0.0)
    # row i of the product is the sum of the slice's rows that have i's id; fp32 is not rounded to tf32
    same = (ids[:, None] == ids[None, :]).to(x.dtype)
    sums = tl.dot(same, x, input_precision="ieee")
    # the first row of an id in the slice writes its sum
    previous = tl.load(ids_ptr + at - 1, mask=inside & (at > begin), other=-1)
    is_first = ids != previous
    before = tl.load(ids_ptr + begin - 1, mask=begin > 0, other=-1)
    after = tl.load(ids_ptr + begin + SLICE, mask=begin + SLICE < T, other=-1)
    carried_in = is_first & (ids == before)
    carried_out = is_first & (ids == after)
    # incomplete for a run carried in: the second kernel overwrites it
    ends = is_first & (ids != after)
    tl.store(table_ptr + ids.to(tl.int64)[:, None] * W + cols[None, :], sums, mask=ends[:, None] & within)
    carry = partial_ptr + tl.program_id(0).to(tl.int64) * 2 * W + cols[None, :] + tl.zeros_like(at)[:, None]
    tl.store(carry, sums, mask=carried_in[:, None] & within)
    tl.store(carry + W, sums, mask=carried_out[:, None] & within)


@triton.jit(do_not_specialize=["T"])
def scatter_runs_kernel(
    table_ptr,                                  # out: [V, W]
    partial_ptr, ids_ptr, ends_ptr,             # in: [slices, 2, W], [T], [slices]: end of the last row's run
    T, W: tl.constexpr, SLICE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    begin = number * SLICE
    end = tl.load(ends_ptr + number)
    token = tl.load(ids_ptr + tl.minimum(begin + SLICE, T) - 1)
    before = tl.load(ids_ptr + begin - 1, mask=begin > 0, other=-1)
    # the slice where a longer run begins adds it up
    if (end <= begin + SLICE) | (token == before):
        return
    base = partial_ptr + number.to(tl.int64) * 2 * W
    total = tl.load(base + W + cols, mask=cols < W, other=0.0)
    carries = (end - 1) // SLICE - number  # slices after this one that carry the run in
    for first in range(0, carries, BLOCK_C):
        carry = first + tl.arange(0, BLOCK_C)
        at = (carry[:, None] + 1) * 2 * W + cols[None, :]
        inside = (carry[:, None] < carries) & (cols[None, :] < W)
        total += tl.sum(tl.load(base + at, mask=inside, other=0.0), 0)
    tl.store(table_ptr + token.to(tl.int64) * W + cols, total, mask=cols < W)
