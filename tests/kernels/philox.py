"""Philox 4x32 (Salmon et al. 2011) in torch, to recompute the kernels' dropout masks."""

import torch
from torch import Tensor

LOW = 0xFFFFFFFF


def _high(x: Tensor) -> Tensor:
    return (x >> 32) & LOW  # the shift of a negative number fills in ones


def philox(seed: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, rounds: int) -> Tensor:
    """Return the four 32-bit words of every counter, [4, ...] int64; products wrap at 64 bits."""
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(rounds):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c2 = _high(right) ^ c1 ^ k0, _high(left) ^ c3 ^ k1
        c1, c3 = right & LOW, left & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return torch.stack([c0, c1, c2, c3])


def keep_mask(seed: int, dropout_p: float, number: Tensor, *counters: Tensor) -> Tensor:
    """Whether the kernels keep the element that has a number in 0..7 in the call with these counters."""
    number, *counters = torch.broadcast_tensors(number, *(c.long() for c in counters))
    words = philox(seed, *counters, rounds=7)
    word = words.gather(0, number[None] >> 1)[0]
    return word >> 16 * (number & 1) & 0xFFFF >= int(dropout_p * 2**16)
