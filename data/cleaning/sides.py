"""The side of a document: a number that decides whether it is held out.

It is made from the document's least 5-gram hash (MinHash: Broder 1997), so that two texts whose n-grams have
Jaccard similarity J are on the same side with probability J: a text stays on its side when it is edited a
little, cleaned otherwise, or comes again in another corpus. Width, case, punctuation and traditional
characters do not matter, nor does any seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.cleaning.measures import letters_of
from data.hashing import GOLDEN, mix

_NGRAM = 5
_KEY = np.uint64(0x6A69787568656C64)  # makes these hashes independent of others


def sides_of(texts: Sequence[str]) -> np.ndarray:
    """Compute the sides of documents, [D] uint32, uniform over all numbers."""
    hashes, first = letters_of(texts).ngrams(_NGRAM)
    least = np.full(len(texts), np.iinfo(np.uint64).max)
    has_letters = np.diff(first) > 0
    least[has_letters] = np.minimum.reduceat(mix(hashes ^ _KEY), first[:-1][has_letters])
    # the least of many numbers is small: mixed once more it may be any
    return (mix(least + GOLDEN) >> np.uint64(32)).astype(np.uint32)
