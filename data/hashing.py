"""Randomness without state: a number is a pure function of a key and a counter, so that nothing depends on
order, batches or workers.
"""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_EIGHT = np.uint64(8 * 0x9E3779B97F4A7C15 % 2**64)  # counters step by eight, so that streams fit between


def salt(*numbers: int) -> np.uint64:
    """One key from several numbers, order counting.

    >>> salt(1, 2) != salt(2, 1)
    True
    """
    key = 0
    for number in numbers:
        key = (key * int(GOLDEN) + number + 1) % 2**64
    return np.uint64(key)


def mix(x: np.ndarray) -> np.ndarray:
    """Steele et al. 2014, splitmix64's finaliser: 64 well-mixed bits from each 64-bit counter. In place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def random_bits(keys: np.ndarray, counters: np.ndarray, stream: int) -> np.ndarray:
    """64 bits for each (key, counter, stream); streams are 0..7."""
    bits = counters.astype(np.uint64)
    bits *= _EIGHT
    bits += keys + np.uint64(stream * int(GOLDEN) % 2**64) if stream else keys
    return mix(bits)


def rebase(keys: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """Keys that give for counter + origin what `keys` give for the counter."""
    return keys - origins.astype(np.uint64) * _EIGHT


def uniform(keys: np.ndarray, counters: np.ndarray, stream: int) -> np.ndarray:
    """Numbers in [0, 1), one for each (key, counter, stream)."""
    return (random_bits(keys, counters, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
