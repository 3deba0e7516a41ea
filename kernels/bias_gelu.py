"""Bias and activation in one pass: erf's GELU, its tanh approximation, or ReLU.

Hendrycks & Gimpel 2016: x * Phi(x), or x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), which equals
x/2 (1 + tanh(u)). R = packed tokens (rows), F = width. The backward pass also sums the bias's gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.dispatch import handwritten, on_device, operator, tl, triton, use_triton
from kernels.gelu_cpu import gelu_on_cpu
from kernels.linear import linear_and_residual

ACTIVATIONS = ("gelu", "gelu_new", "relu")  # names of configs; gelu is erf's, gelu_new tanh's
_APPROXIMATION = {"gelu": "none", "gelu_new": "tanh"}
PROGRAMS = 128  # of the backward pass; each sums its share of the rows


def activate(x: Tensor, activation: str) -> Tensor:
    """Apply the activation that a config names."""
    if activation == "gelu_new" and handwritten(x):
        return gelu_on_cpu(x)
    return F.relu(x) if activation == "relu" else F.gelu(x, approximate=_APPROXIMATION[activation])


def bias_gelu_reference(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Compute `bias_gelu` in plain torch."""
    return activate(x + bias, activation)


@triton.jit
def _normal(x):
    """Compute Phi(x), the normal distribution's share below x."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit(do_not_specialize=["R"])
def bias_gelu_fwd_kernel(
    y_ptr,                                      # out: [R, F]
    x_ptr, bias_ptr,                            # in: [R, F], [F]
    R, F: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = (rows[:, None] < R) & (cols[None, :] < F)
    at = rows[:, None] * F + cols[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + cols, mask=cols < F, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "gelu":
        y = x * _normal(x)
    elif ACTIVATION == "gelu_new":
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        y = tl.where(x < 0, 0.0, x)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["R"])
def bias_gelu_bwd_kernel(
    dx_ptr, dbias_ptr,                          # out: [R, F], [programs, F]
    dy_ptr, x_ptr, bias_ptr,                    # in: [R, F], [R, F], [F]
    R, F: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    program, step = tl.program_id(0), tl.num_programs(0) * BLOCK_R
    cols = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    bias = tl.load(bias_ptr + cols, mask=cols < F, other=0.0).to(tl.float32)
    # summed over the rows of a tile at the end: a sum inside of the loop would need barriers
    dbias = tl.zeros([BLOCK_R, BLOCK_F], tl.float32)
    for first in range(program * BLOCK_R, R, step):
        rows = first + tl.arange(0, BLOCK_R)
        inside = (rows[:, None] < R) & (cols[None, :] < F)
        at = rows.to(tl.int64)[:, None] * F + cols[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION == "gelu":
            slope = _normal(x) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        elif ACTIVATION == "gelu_new":
            share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
            slope = share + x * inner * share * (1.0 - share)
        else:
            slope = tl.where(x <= 0, 0.0, 1.0)
        dx = dy * slope
        dbias += dx
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dbias_ptr + program * F + cols, tl.sum(dbias, 0), mask=cols < F)


def _blocks(width: int) -> tuple[int, int]:
    """Choose rows and columns of a tile of 2048 numbers."""
    columns = min(512, triton.next_power_of_2(width))
    return 2048 // columns, columns


def _save(ctx, inputs, output):
    x, bias, ctx.activation = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx, dy):
    return *_backward(dy, *ctx.saved_tensors, ctx.activation), None


@operator("jixu::bias_gelu", lambda x, *_: torch.empty_like(x), _save, _gradients)
def _forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    R, width = x.shape
    y = torch.empty_like(x)
    rows, columns = _blocks(width)
    if R:
        with on_device(x):
            bias_gelu_fwd_kernel[(triton.cdiv(R, rows), triton.cdiv(width, columns))](
                y, x, bias, R, F=width, ACTIVATION=activation, BLOCK_R=rows, BLOCK_F=columns, num_warps=4
            )
    return y


@operator("jixu::bias_gelu_backward", lambda dy, x, bias, _: (torch.empty_like(x), torch.empty_like(bias)))
def _backward(dy: Tensor, x: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    R, width = x.shape
    rows, columns = _blocks(width)
    programs = min(PROGRAMS, max(1, triton.cdiv(R, rows)))
    dx = torch.empty_like(x)
    dbias = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    with on_device(x):
        bias_gelu_bwd_kernel[(programs, triton.cdiv(width, columns))](
            dx, dbias, dy.contiguous(), x, bias, R,
            F=width, ACTIVATION=activation, BLOCK_R=rows, BLOCK_F=columns, num_warps=4,
        )  # fmt: skip
    return dx, dbias.sum(0).to(bias.dtype)


def bias_gelu(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Apply the activation to x + bias. x [R, F]; bias [F]. Returns [R, F] in x's dtype."""
    if not use_triton(x):
        return bias_gelu_reference(x, bias, activation)
    return _forward(x.contiguous(), bias.contiguous(), activation)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Apply the activation to a linear map of x [R, H], with weight [F, H] and bias [F].

    Returns [R, F], and x for the residual.
    """
    fused = use_triton(x)
    y, residual = linear_and_residual(x, weight, None if fused else bias)
    return bias_gelu(y, bias, activation) if fused else activate(y, activation), residual
