"""Linear maps in half precision whose weights get fp32 gradients.

torch's autocast converts a weight once per pass and sums the gradients of all its uses in half precision. A
weight shared by twelve layers thus loses bits that its update needs. Here every use gives an fp32 gradient.
If x is also the residual of the next operator, its gradient is added within the GEMM, which saves a write and
a read of [T, H] in 16 bits. T = packed tokens, H and F = widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from kernels.dispatch import compute_dtype


class _Copies(NamedTuple):
    """Parameters in autocast's dtype, and what is derived from them, while `copied_once` lasts."""

    half: dict[Tensor, Tensor]
    derived: dict[Tensor, Tensor]


# each thread has its own: a server's may share a model
_copies: ContextVar[_Copies | None] = ContextVar("copies", default=None)


@contextmanager
def copied_once(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Convert parameters to autocast's dtype once for all their uses in the block, by this thread."""
    half = {p: p.detach().to(compute_dtype(p)) for p in parameters if compute_dtype(p) != p.dtype}
    token = _copies.set(_Copies(half, {}))
    try:
        yield
    finally:
        _copies.reset(token)


def derived_once(parameter: Tensor, derive: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute derive(parameter): once for all its uses while `copied_once` lasts, each time outside of it."""
    copies = None if torch.compiler.is_compiling() else _copies.get()
    if copies is None or parameter not in copies.half:
        return derive(parameter)
    if parameter not in copies.derived:
        copies.derived[parameter] = made = derive(parameter)
        copies.half[made] = made.detach().to(copies.half[parameter].dtype)
    return copies.derived[parameter]


def _half(x: Tensor, dtype: torch.dtype) -> Tensor:
    copies = _copies.get()
    return (copies.half.get(x, x) if copies else x).to(dtype)


def _sum_rows(x: Tensor) -> Tensor:
    """Sum the rows of x [T, F] in fp32. On a CPU in pieces, as torch copies what it sums to fp32 first."""
    if x.is_cuda:
        return x.sum(0, dtype=torch.float32)
    return torch.stack([piece.sum(0, dtype=torch.float32) for piece in x.split(256)]).sum(0)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = x.to(compute_dtype(x))
        half = _half(weight, rows.dtype)
        ctx.save_for_backward(rows, half)
        ctx.has_bias = bias is not None
        ctx.set_materialize_grads(False)
        return F.linear(rows, half, None if bias is None else _half(bias, rows.dtype)), x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor, dresidual: Tensor | None):  # type: ignore[override]  # hidden signature
        x, half = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            # cuBLAS writes out the fp32 sums of a product, a CPU rounds them
            rows = dy.t()
            dweight = torch.mm(rows, x, out_dtype=torch.float32) if x.is_cuda else (rows @ x).float()
            dbias = _sum_rows(dy) if ctx.has_bias else None
            if dresidual is None:
                return dy @ half, dweight, dbias
            if dresidual.dtype != dy.dtype:
                return dresidual + dy @ half, dweight, dbias
            # in place: addmm would copy it first. All who read it came before, as dy is computed from it
            return dresidual.addmm_(dy, half), dweight, dbias


def linear_and_residual(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute `linear`, and return x with it: as a residual for what is computed from the first output."""
    is_plain = compute_dtype(x) == torch.float32 or weight.dtype != torch.float32
    if is_plain or torch.compiler.is_compiling():
        return F.linear(x, weight, bias), x
    return _Linear.apply(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map x [T, H] by weight [F, H] and bias [F], in autocast's dtype. Returns [T, F]."""
    return linear_and_residual(x, weight, bias)[0]
