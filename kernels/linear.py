"""Linear maps in half precision whose weights get fp32 gradients.

torch's autocast converts a weight once a pass and adds up the gradients of all its uses in half precision;
a weight that twelve layers share so loses bits that its one update needs. Here every use gives an fp32
gradient. T = packed tokens, H and F = widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from kernels.dispatch import compute_dtype

_COPY = "half_copy"  # attribute of a parameter while `copied_once` lasts


@contextmanager
def copied_once(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Convert parameters to autocast's dtype once for all their uses in the block."""
    copied = [p for p in parameters if compute_dtype(p) != p.dtype]
    for p in copied:
        setattr(p, _COPY, p.detach().to(compute_dtype(p)))
    try:
        yield
    finally:
        for p in copied:
            delattr(p, _COPY)


def _half(x: Tensor, dtype: torch.dtype) -> Tensor:
    return getattr(x, _COPY, x).to(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.to(compute_dtype(x))
        half = _half(weight, x.dtype)
        ctx.save_for_backward(x, half)
        ctx.has_bias = bias is not None
        return F.linear(x, half, None if bias is None else _half(bias, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):  # type: ignore[override]  # once_differentiable hides the signature
        x, half = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            # cuBLAS writes out the fp32 sums of a product, a CPU rounds them
            rows = dy.t()
            dweight = torch.mm(rows, x, out_dtype=torch.float32) if x.is_cuda else (rows @ x).float()
            return dy @ half, dweight, dy.sum(0, dtype=torch.float32) if ctx.has_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map x [T, H] by weight [F, H] and bias [F], in autocast's dtype. Returns [T, F]."""
    is_plain = compute_dtype(x) == torch.float32 or weight.dtype != torch.float32
    if is_plain or torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)
