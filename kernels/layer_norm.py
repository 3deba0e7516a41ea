"""Bias, dropout, residual add and LayerNorm in one pass.

y = (s - mean) * rstd * weight + bias with s = dropout(x + x_bias) + residual (Ba et al. 2016, eq. 3-4).
x_bias is that of the linear map before, whose gradient then needs no pass over dx. Statistics in fp32, the
variance from centred values: E[x^2] - mean^2 would lose it where the mean is large. With n = (s - mean) *
rstd and dn = dy * weight: ds = rstd * (dn - mean(dn) - n * mean(dn * n)). R = packed tokens, H = hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import LayerNorm
from torch.nn.functional import layer_norm

from kernels.dispatch import Constants, on_device, operator, tl, triton, use_triton
from kernels.dropout import draw_seed, dropout, dropout_constants, keep, row_keys
from kernels.linear import linear
from kernels.tuning import MULTIPROCESSORS, row_tile

PROGRAMS = 8 * MULTIPROCESSORS  # of the backward pass; each sums its share of the rows


def add_layer_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout_p: float = 0.0,
    seed: Tensor | None = None, rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute `add_layer_norm` in plain torch."""
    x = dropout(x, dropout_p, seed=seed, rows=rows)
    return layer_norm(x + residual, weight.shape, weight, bias, eps)


@triton.jit
def _sum(
    x_ptr, x_bias_ptr, residual_ptr, seed_ptr, numbers_ptr, rows, R, H: tl.constexpr,
    DROPOUT: tl.constexpr, RESCALE: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Compute s [rows, BLOCK_W], zero outside, and which numbers stay."""
    cols = tl.arange(0, BLOCK_W)
    inside = (rows[:, None] < R) & (cols[None, :] < H)
    at = rows.to(tl.int64)[:, None] * H + cols[None, :]
    s = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if x_bias_ptr is not None:
        s += tl.load(x_bias_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    kept = inside
    if DROPOUT:
        numbers = rows
        if numbers_ptr is not None:
            numbers = tl.load(numbers_ptr + rows, mask=rows < R, other=0)
        kept = keep(row_keys(seed_ptr, numbers)[:, None], cols[None, :], DROPOUT)
        s = tl.where(kept, s * RESCALE, 0.0)
    return s + tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32), kept


@triton.jit
def normalise(s, weight_ptr, bias_ptr, eps, H: tl.constexpr, BLOCK_W: tl.constexpr):
    """LayerNorm the rows of s, which are zero past H; return them, their means and 1 / deviations."""
    cols = tl.arange(0, BLOCK_W)
    mean = tl.sum(s, 1) / H
    centred = tl.where(cols[None, :] < H, s - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / H + eps)
    weight = tl.load(weight_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)
    return centred * rstd[:, None] * weight[None, :] + bias[None, :], mean, rstd


@triton.jit
def normalise_backward(dy, s, weight, mean_ptr, rstd_ptr, rows, R, H: tl.constexpr):
    """Compute the gradient of s, and the normalised rows."""
    mean = tl.load(mean_ptr + rows, mask=rows < R, other=0.0)
    rstd = tl.load(rstd_ptr + rows, mask=rows < R, other=0.0)
    normed = (s - mean[:, None]) * rstd[:, None]
    dnormed = dy * weight[None, :]
    along = tl.sum(dnormed * normed, 1) / H
    ds = rstd[:, None] * (dnormed - (tl.sum(dnormed, 1) / H)[:, None] - normed * along[:, None])
    return ds, normed


@triton.jit(do_not_specialize=["R"])
def add_layer_norm_fwd_kernel(
    y_ptr, mean_ptr, rstd_ptr,                  # out: [R, H], [R], [R]
    x_ptr, x_bias_ptr, residual_ptr,            # in: [R, H], [H] or None, [R, H]
    weight_ptr, bias_ptr,                       # in: [H], [H]
    seed_ptr, numbers_ptr,                      # in: [1], [R] or None: the rows', if not 0..R-1
    R, eps, H: tl.constexpr, DROPOUT: tl.constexpr, RESCALE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.arange(0, BLOCK_W)
    inside = (rows[:, None] < R) & (cols[None, :] < H)
    at = rows.to(tl.int64)[:, None] * H + cols[None, :]
    s, _ = _sum(x_ptr, x_bias_ptr, residual_ptr, seed_ptr, numbers_ptr, rows, R, H, DROPOUT, RESCALE, BLOCK_W)
    y, mean, rstd = normalise(s, weight_ptr, bias_ptr, eps, H, BLOCK_W)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < R)
    tl.store(rstd_ptr + rows, rstd, mask=rows < R)


@triton.jit(do_not_specialize=["R"])
def add_layer_norm_bwd_kernel(
    ds_ptr, dx_ptr,                             # out: [R, H], [R, H] if DROPOUT
    sums_ptr,                                   # out: [2 or 3, programs, H] of dweight, dbias and dx_bias
    dy_ptr, x_ptr, x_bias_ptr, residual_ptr, weight_ptr, mean_ptr, rstd_ptr,
    seed_ptr, numbers_ptr, R, H: tl.constexpr, DROPOUT: tl.constexpr, RESCALE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK_W)
    weight = tl.load(weight_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)
    # summed over the rows of a tile at the end: a sum inside of the loop would need barriers
    dweight = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    dbias = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    dx_bias = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    for first in range(program * BLOCK_R, R, programs * BLOCK_R):
        rows = first + tl.arange(0, BLOCK_R)
        inside = (rows[:, None] < R) & (cols[None, :] < H)
        at = rows.to(tl.int64)[:, None] * H + cols[None, :]
        s, kept = _sum(
            x_ptr, x_bias_ptr, residual_ptr, seed_ptr, numbers_ptr, rows, R, H, DROPOUT, RESCALE, BLOCK_W
        )
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        ds, normed = normalise_backward(dy, s, weight, mean_ptr, rstd_ptr, rows, R, H)
        dweight += dy * normed
        dbias += dy
        tl.store(ds_ptr + at, ds.to(ds_ptr.dtype.element_ty), mask=inside)
        dx = ds
        if DROPOUT:
            dx = tl.where(kept, ds * RESCALE, 0.0)
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dx_bias += dx
    at = program * H + cols
    tl.store(sums_ptr + at, tl.sum(dweight, 0), mask=cols < H)
    tl.store(sums_ptr + programs * H + at, tl.sum(dbias, 0), mask=cols < H)
    if x_bias_ptr is not None:
        tl.store(sums_ptr + 2 * programs * H + at, tl.sum(dx_bias, 0), mask=cols < H)


def _constants(H: int, dropout_p: float) -> Constants:
    return {"H": H, **dropout_constants(dropout_p), **row_tile(H)}


def _outputs(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = (torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))
    return torch.empty_like(x), mean, rstd


def _save(ctx, inputs, output):
    x, x_bias, residual, weight, bias, _eps, ctx.dropout_p, *drawn = inputs
    ctx.save_for_backward(x, x_bias, residual, weight, *output[1:], *drawn)
    ctx.mark_non_differentiable(*output[1:])
    ctx.bias_dtype = bias.dtype


def _gradients(ctx, dy, _mean, _rstd):
    tensors = ctx.saved_tensors
    x, x_bias, _residual, weight, *_ = tensors
    ds, dx, sums = _backward(dy, *tensors, ctx.dropout_p)
    dx = dx if ctx.dropout_p else ds.to(x.dtype)
    dx_bias = None if x_bias is None else sums[2].to(x_bias.dtype)
    return dx, dx_bias, ds, sums[0].to(weight.dtype), sums[1].to(ctx.bias_dtype), *(None,) * 4


@operator("jixu::add_layer_norm", _outputs, _save, _gradients)
def _forward(
    x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor, bias: Tensor, eps: float,
    dropout_p: float = 0.0, seed: Tensor | None = None, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    R, H = x.shape
    y, mean, rstd = _outputs(x)
    constants = _constants(H, dropout_p)
    if R:
        with on_device(x):
            add_layer_norm_fwd_kernel[(triton.cdiv(R, constants["BLOCK_R"]),)](
                y, mean, rstd, x, x_bias, residual, weight, bias, seed, rows, R, eps, **constants
            )
    return y, mean, rstd


def _sums(dy, x, x_bias, residual, weight, mean, rstd, seed, rows, dropout_p):
    dx = x.new_empty(x.shape if dropout_p else (0, x.shape[1]))
    sums = x.new_empty(2 if x_bias is None else 3, x.shape[1], dtype=torch.float32)
    return torch.empty_like(residual), dx, sums


@operator("jixu::add_layer_norm_backward", _sums)
def _backward(
    dy: Tensor, x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor, mean: Tensor,
    rstd: Tensor, seed: Tensor | None, rows: Tensor | None, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of residual, x (empty without dropout: as residual's) and the others [2 or 3, H].

    The last are fp32: of weight, bias and, if there is one, x_bias.
    """
    R, H = x.shape
    constants = _constants(H, dropout_p)
    programs = min(PROGRAMS, max(1, triton.cdiv(R, constants["BLOCK_R"])))
    ds = torch.empty_like(residual)
    dx = torch.empty(x.shape if dropout_p else (0, H), dtype=x.dtype, device=x.device)
    sums = torch.empty(2 if x_bias is None else 3, programs, H, dtype=torch.float32, device=x.device)
    with on_device(x):
        add_layer_norm_bwd_kernel[(programs,)](
            ds, dx if dropout_p else None, sums, dy.contiguous(), x, x_bias, residual, weight, mean, rstd,
            seed, rows, R, **constants,
        )  # fmt: skip
    return ds, dx, sums.sum(1)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12,
    *, dropout_p: float = 0.0, seed: Tensor | None = None, rows: Tensor | None = None,
    x_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute LayerNorm(dropout(x + x_bias) + residual) in x's dtype. x, residual [R, H]; the others [H].

    `seed` and `rows` are those of `dropout`.
    """
    seed = draw_seed(x, dropout_p) if seed is None else seed
    if not use_triton(x):
        x = x if x_bias is None else x + x_bias
        return add_layer_norm_reference(x, residual, weight, bias, eps, dropout_p, seed, rows)
    drawn = (seed, rows) if dropout_p else (None, None)
    tensors = (y if y is None else y.contiguous() for y in (x, x_bias, residual, weight, bias))
    return _forward(*tensors, eps, dropout_p, *drawn)[0]


def linear_add_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, norm: LayerNorm, dropout_p: float = 0.0,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute norm(dropout(linear(x)) + residual). x [R, F]; weight [H, F]; bias [H]; residual [R, H]."""
    fused = use_triton(x)
    y = linear(x, weight, None if fused else bias)
    return add_layer_norm(
        y, residual, norm.weight, norm.bias, norm.eps,
        dropout_p=dropout_p, rows=rows, x_bias=bias if fused else None,
    )  # fmt: skip
