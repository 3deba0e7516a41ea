"""Dropout in kernels: which numbers stay is a function of a seed and of places, drawn again where needed.

Philox 4x32 (Salmon et al. 2011) in 7 rounds, the fewest that pass BigCrush. A call gives 128 bits, for eight
numbers of 16 bits. It pays if the numbers that share a call lie in one thread, which then makes it once.
"""

from __future__ import annotations

from kernels.dispatch import Constants, tl, triton


def dropout_constants(dropout_p: float) -> Constants:
    """The threshold of `keep`, out of 16 random bits, and the factor of the numbers that stay."""
    return {"DROPOUT": int(dropout_p * 2**16), "RESCALE": 1 / (1 - dropout_p)}


@triton.jit
def keep(seed_ptr, c0, c1, c2, c3, upper, odd, second, DROPOUT: tl.constexpr):
    """Draw whether numbers stay: by the four counters of their call, and three bits that tell them apart."""
    words = tl.philox(tl.load(seed_ptr), c0, c1, c2, c3, n_rounds=7)
    even_word = tl.where(upper == 0, words[0], words[2])
    odd_word = tl.where(upper == 0, words[1], words[3])
    word = tl.where(odd == 0, even_word, odd_word)
    return tl.where(second == 0, word & 0xFFFF, word >> 16).to(tl.int32) >= DROPOUT
