"""Dropout as a function of a seed and a place: the same numbers drop in any batch, tile, pass and device.

A row's key is a hash of the seed and its number; the column joins by exclusive or, and two products around an
xor-shift decide (form and constants as in Wellons' hash-prospector, 2018). The kernels draw again where they
need it. R = rows, C = columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Constants, KernelError, tl, triton

PIECE_NUMBERS = 1 << 18  # drawn at once on a CPU, so that they stay in the caches


def dropout_constants(dropout_p: float) -> Constants:
    """The threshold of `keep`, out of 32 random bits, and the factor of the numbers that stay."""
    return {"DROPOUT": int(dropout_p * 2**32), "RESCALE": 1 / (1 - dropout_p)}


def draw_seed(x: Tensor, dropout_p: float) -> Tensor | None:
    """Draw the seed [1] int64 of a dropout from torch's generator: one number, whatever the size of x."""
    if not 0 <= dropout_p < 1:
        raise KernelError(f"dropout_p={dropout_p} is not in [0, 1)")
    return torch.randint(2**62, (1,), device=x.device) if dropout_p else None


@triton.jit
def row_keys(seed_ptr, numbers):
    seed = tl.load(seed_ptr)
    key = numbers.to(tl.uint32) * 0x7FEB352D + seed.to(tl.uint32)
    key ^= key >> 16
    return key * 0x2C1B3C6D + (seed >> 32).to(tl.uint32)


@triton.jit
def keep(keys, cols, DROPOUT: tl.constexpr):
    """Draw which numbers stay, by the key of their row and their column."""
    x = (keys ^ (cols.to(tl.uint32) * 0x297A2D39)) * 0x21F0AAAD
    return (x ^ (x >> 15)) * 0x735A2D97 >= DROPOUT


def row_keys_reference(seed: Tensor, numbers: Tensor) -> Tensor:
    """Compute `row_keys` in torch, whose int32 shifts copy the sign."""
    key = numbers.int() * 0x7FEB352D + seed.int()
    key ^= (key >> 16) & 0xFFFF
    return key * 0x2C1B3C6D + (seed >> 32).int()


def keep_reference(keys: Tensor, columns: int, dropout_p: float) -> Tensor:
    """Compute `keep` in torch for keys [..., R] and all columns: [..., R, C]."""
    x = keys[..., None] ^ (torch.arange(columns, dtype=torch.int32, device=keys.device) * 0x297A2D39)
    x *= 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x735A2D97
    # unsigned numbers in signed ones
    return x.bitwise_xor_(-(2**31)) >= int(dropout_p * 2**32) - 2**31


def dropout(x: Tensor, dropout_p: float, *, seed: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """Drop numbers of x [R, C] and scale the others by 1 / (1 - dropout_p).

    `rows` [R] are the rows' numbers, by default 0..R-1; `seed` ([1] int64 on the device) is drawn from
    torch's generator by default.
    """
    seed = draw_seed(x, dropout_p) if seed is None else seed
    if seed is None or not dropout_p:
        return x
    keys = row_keys_reference(seed, torch.arange(len(x), device=x.device) if rows is None else rows)
    pieces = keys.split(max(1, PIECE_NUMBERS // x.shape[1])) if x.device.type == "cpu" else (keys,)
    kept = torch.cat([keep_reference(piece, x.shape[1], dropout_p) for piece in pieces])
    return x * (1 / (1 - dropout_p)) * kept.to(x.dtype)
