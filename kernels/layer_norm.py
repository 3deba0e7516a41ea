"""Residual add and LayerNorm in one pass: y = (s - mean) * rstd * weight + bias, s = x + residual.

Ba et al. 2016, eq. 3-4. R = packed tokens (rows), H = hidden size. Statistics in fp32, the variance from
centred values: E[x^2] - mean^2 would lose it where the mean is large.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from kernels.dispatch import tl, triton, use_triton


def add_layer_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As `add_layer_norm`, in plain torch."""
    return layer_norm(x + residual, weight.shape, weight, bias, eps)


@triton.jit
def add_layer_norm_fwd_kernel(
    y_ptr, mean_ptr, rstd_ptr,                  # out: [R, H], [R], [R]
    x_ptr, residual_ptr, weight_ptr, bias_ptr,  # in: [R, H], [R, H], [H], [H]
    H, eps, BLOCK_H: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_H)
    inside = cols < H
    at = row * H + cols
    s = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    s += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(s, 0) / H
    centred = tl.where(inside, s - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / H + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, centred * rstd * weight + bias, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@torch.library.custom_op("jixu::add_layer_norm", mutates_args=())
def _forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    R, H = x.shape
    y = torch.empty_like(x)
    mean, rstd = (x.new_empty(R, dtype=torch.float32) for _ in range(2))
    if R:
        add_layer_norm_fwd_kernel[(R,)](
            y, mean, rstd, x, residual, weight, bias, H, eps, BLOCK_H=triton.next_power_of_2(H)
        )
    return y, mean, rstd


@_forward.register_fake
def _(x, residual, weight, bias, eps):
    R = x.shape[0]
    return torch.empty_like(x), x.new_empty(R, dtype=torch.float32), x.new_empty(R, dtype=torch.float32)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output[1:])  # x, residual, weight, mean, rstd


def _backward(ctx, dy, _mean, _rstd):
    """With n = (s - mean) * rstd: ds = rstd * (dn - mean(dn) - n * mean(dn * n)), dn = dy * weight."""
    x, residual, weight, mean, rstd = ctx.saved_tensors
    dy = dy.float()
    normed = (x.float() + residual.float() - mean[:, None]) * rstd[:, None]  # [R, H]
    dnormed = dy * weight.float()
    along = (dnormed * normed).mean(-1, keepdim=True)  # [R, 1]
    ds = (rstd[:, None] * (dnormed - dnormed.mean(-1, keepdim=True) - normed * along)).to(x.dtype)
    return ds, ds.to(residual.dtype), (dy * normed).sum(0).to(weight.dtype), dy.sum(0).to(weight.dtype), None


_forward.register_autograd(_backward, setup_context=_save)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    """LayerNorm(x + residual). x, residual [R, H]; weight, bias [H]. Returns [R, H] in x's dtype."""
    if not use_triton(x):
        return add_layer_norm_reference(x, residual, weight, bias, eps)
    return _forward(x.contiguous(), residual.contiguous(), weight, bias, eps)[0]
