"""Philox 4x32 (Salmon et al. 2011) in numpy: the dropout masks of the kernels, made a second time."""

import numpy as np
import torch
from torch import Tensor

LOW = np.uint64(0xFFFFFFFF)


def philox(seed: int, c0, c1, c2, c3, rounds: int) -> np.ndarray:
    """First of the four 32-bit words of every counter."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in np.broadcast_arrays(c0, c1, c2, c3))
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    a, b = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    for _ in range(rounds):
        left, right = a * c0, b * c2
        c0, c2 = (right >> np.uint64(32)) ^ c1 ^ k0, (left >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = right & LOW, left & LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & LOW, (k1 + np.uint64(0xBB67AE85)) & LOW
    return c0


def kept(seed: int, dropout_p: float, c0, c1, c2) -> Tensor:
    """Whether the kernels keep the element of a counter."""
    random = philox(seed, c0, c1, c2, 0, rounds=7)
    return torch.from_numpy((random >> np.uint64(1)) >= np.uint64(int(dropout_p * 2**31)))
