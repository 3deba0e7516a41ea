"""Projections into and out of attention's heads, wide enough for aligned loads.

Where the kernels want wider heads than the model has (`padded_head_dim`), zero rows and columns are put
between those of the weights for the product: scores and outputs are the same, and the gradients come back
without them, so that neither optimiser nor checkpoint ever sees a pad. T = packed tokens, N = heads, D = head
dim, P = padded.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear, pad

from kernels.attention import padded_head_dim


def split_heads(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> Tensor:
    """Queries, keys and values [T, 3, N, P] of x [T, H]; weight [3 N D, H], bias [3 N D]."""
    D = weight.shape[0] // (3 * heads)
    P = padded_head_dim(D, x)
    if P > D:
        weight = pad(weight.view(3, heads, D, -1), (0, 0, 0, P - D)).flatten(0, 2)
        bias = pad(bias.view(3, heads, D), (0, P - D)).flatten()
    return linear(x, weight, bias).view(-1, 3, heads, P)


def merge_heads(mixed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The output projection [T, H] of mixed [T, N, P]; weight [H, N D], bias [H]."""
    N, P = mixed.shape[1:]
    D = weight.shape[1] // N
    if P > D:
        weight = pad(weight.view(-1, N, D), (0, P - D)).flatten(1)
    return linear(mixed.flatten(1), weight, bias)
