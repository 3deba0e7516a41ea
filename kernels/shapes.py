"""Sizes that repeat, for products in 16 bits on a CPU.

oneDNN compiles a program for each shape of a product in 16 bits. On a Xeon with AMX that takes 5 to 10 ms,
several times as long as the product, and packed batches rarely repeat a number of rows. So rows are added
that count for nothing. Products in fp32 are MKL's, which compiles nothing.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from kernels.dispatch import compute_dtype, handwritten

LEAST = 8  # sizes are multiples of it


def filler(rows: int, x: Tensor) -> int:
    """How many rows to add to the `rows` rows of an operator on `x`: at most a sixteenth or LEAST - 1.

    None on a GPU, in fp32 and under torch.compile.
    """
    if not handwritten(x) or compute_dtype(x).itemsize > 2:
        return 0
    return -rows % max(LEAST, (1 << rows.bit_length()) // 32)


def fill(x: Tensor, rows: int, value: int = 0) -> Tensor:
    """`x` followed by `rows` rows of `value`."""
    return pad(x, [0, 0] * (x.dim() - 1) + [0, rows], value=value) if rows else x
