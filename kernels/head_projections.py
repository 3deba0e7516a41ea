"""Projections into and out of attention's heads, padded to a width that aligns loads.

Where the kernels want wider heads than the model has (`padded_head_dim`), the product runs on weights with
zero rows or columns in between: scores, outputs and gradients are the same, and neither optimiser nor
checkpoint sees a pad. T = packed tokens, N = heads, D = head dim, P = padded.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from kernels.attention import padded_head_dim
from kernels.linear import derived_once, linear_and_residual


def split_heads(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Project x [T, H] to queries, keys and values [T, 3, N, P]; weight [3 N D, H], bias [3 N D].

    Returns them, and x for the residual.
    """
    D = weight.shape[0] // (3 * heads)
    P = padded_head_dim(D, x)
    if P > D:
        weight = derived_once(weight, lambda w: pad(w.view(3, heads, D, -1), (0, 0, 0, P - D)).flatten(0, 2))
        bias = derived_once(bias, lambda b: pad(b.view(3, heads, D), (0, P - D)).flatten())
    qkv, residual = linear_and_residual(x, weight, bias)
    return qkv.view(-1, 3, heads, P), residual


def merge_heads(mixed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [T, N P] of mixed [T, N, P], and the weight [H, N P] that maps them; weight [H, N D]."""
    N, P = mixed.shape[1:]
    D = weight.shape[1] // N
    if P > D:
        weight = derived_once(weight, lambda w: pad(w.view(-1, N, D), (0, P - D)).flatten(1))
    return mixed.flatten(1), weight
