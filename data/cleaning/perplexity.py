"""The perplexity of a document: how unlikely its characters are after one another, in its own corpus.

Pairs of characters are counted. The share of the second after the first is smoothed by its share alone, with
a Dirichlet prior (MacKay and Peto 1995). A hash divides the corpus into two halves, and each is measured by
the counts of the other, so that no document makes itself likely. D = documents, n = characters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.hashing import GOLDEN

_CODE_BITS, _PAIR_BITS = 18, 22  # of a code point, from whose end on all count as one, and of a pair's hash
_PRIOR = 100.0  # pairs; from 50 to 300 it made no difference on labelled documents
_UNIT = 1024  # of a bit: sums of whole numbers do not depend on their order


class CharacterPairs:
    """Counts of characters and of their pairs in both halves of a corpus; a line end follows each document.

    Documents are given by their ids, which are hashes in hexadecimal digits, and their texts.
    """

    def __init__(self) -> None:
        self.characters = np.zeros((2, 1 << _CODE_BITS), dtype=np.int64)
        self.pairs = np.zeros((2, 1 << _PAIR_BITS), dtype=np.int64)

    def add(self, doc_ids: Sequence[str], texts: Sequence[str]) -> None:
        halves, codes, pairs = _numbers(doc_ids, texts)
        np.add.at(self.characters, (halves, codes[1:]), 1)
        np.add.at(self.pairs, (halves, pairs), 1)

    def perplexities(self, doc_ids: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Measure documents by the counts of the half that each is not in, [D]."""
        halves, codes, pairs = _numbers(doc_ids, texts)
        other = 1 - halves
        totals = self.characters.sum(axis=1) + (1 << _CODE_BITS)
        alone = (self.characters[other, codes[1:]] + 1) / totals[other]
        before = self.characters[other, codes[:-1]]
        shares = (self.pairs[other, pairs] + _PRIOR * alone) / (before + _PRIOR)
        lengths = np.array([len(text) + 1 for text in texts])
        bits = np.rint(-_UNIT * np.log2(shares)).astype(np.int64)
        return 2.0 ** (np.add.reduceat(bits, np.cumsum(lengths) - lengths) / (_UNIT * lengths))


def _numbers(doc_ids: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give each character's half [n], the characters after a line end [n+1], and their pairs' hashes [n]."""
    text = "\n".join(["", *texts, ""])
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    codes = np.minimum(codes, np.uint64((1 << _CODE_BITS) - 1))
    pairs = ((codes[:-1] << np.uint64(_CODE_BITS)) | codes[1:]) * GOLDEN >> np.uint64(64 - _PAIR_BITS)
    halves = [int(doc_id[-1], 16) & 1 for doc_id in doc_ids]
    lengths = [len(text) + 1 for text in texts]
    return np.repeat(halves, lengths), codes.astype(np.int64), pairs.astype(np.int64)
