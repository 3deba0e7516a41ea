"""Stateless random numbers: each is a pure function of a key and a counter, whatever the order or workers."""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_EIGHT = np.uint64(8 * 0x9E3779B97F4A7C15 % 2**64)  # counters step by eight, so that streams fit between


def salt(*numbers: int) -> np.uint64:
    """Make one key from several numbers; their order matters.

    >>> bool(salt(1, 2) != salt(2, 1))
    True
    """
    key = 0
    for number in numbers:
        key = (key * int(GOLDEN) + number + 1) % 2**64
    return np.uint64(key)


def mix(x: np.ndarray) -> np.ndarray:
    """Mix 64-bit counters in place with splitmix64's finaliser (Steele et al. 2014)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def random_bits(keys: np.ndarray, counters: np.ndarray, stream: int) -> np.ndarray:
    """Return 64 bits for each (key, counter, stream); streams are 0..7."""
    bits = counters.astype(np.uint64)
    bits *= _EIGHT
    bits += keys + np.uint64(stream * int(GOLDEN) % 2**64) if stream else keys
    return mix(bits)


def rebase(keys: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """Return keys that give at counter + origin what `keys` give at the counter."""
    return keys - origins.astype(np.uint64) * _EIGHT


def uniform(keys: np.ndarray, counters: np.ndarray, stream: int) -> np.ndarray:
    """Return a number in [0, 1) for each (key, counter, stream)."""
    return (random_bits(keys, counters, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
