"""Residual add and LayerNorm in one pass: y = (s - mean) * rstd * weight + bias, s = x + residual.

Ba et al. 2016, eq. 3-4. R = packed tokens (rows), H = hidden size. Statistics in fp32.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm


def add_layer_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As `add_layer_norm`, in plain torch."""
    return layer_norm(x + residual, weight.shape, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    """LayerNorm(x + residual). x, residual [R, H]; weight, bias [H]. Returns [R, H] in x's dtype."""
    return add_layer_norm_reference(x, residual, weight, bias, eps)
