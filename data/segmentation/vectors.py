"""Vectors of words from how often they stand near each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

_CONTEXT_POWER = 0.75  # of the frequencies of contexts (Levy et al. 2015, section 3.1)
# words; of fewer all singular values are computed, as ARPACK is not seeded where it finds the last one
_FEW = 1000


def word_vectors(together: sparse.csr_array, width: int, *, seed: int) -> np.ndarray:
    """Compute vectors of unit length, [V, E] fp32; zero for words without neighbours.

    `together` [V, V], symmetric, says how often two words stand near each other; E is at most V - 1. Positive
    pointwise mutual information, and its truncated singular value decomposition (Levy, Goldberg and Dagan
    2015, sections 2 and 3.3: each side takes the root of the singular values). `seed` draws where it starts.
    """
    # it takes half a second to import, which a refresh without a change does not need
    from scipy import sparse
    from scipy.sparse.linalg import svds

    pairs = together.tocoo()
    pairs.eliminate_zeros()
    totals = pairs.sum(axis=0)
    contexts = totals**_CONTEXT_POWER
    contexts /= contexts.sum() or 1
    information = np.log(pairs.data / (totals[pairs.row] * contexts[pairs.col]))
    positive = information > 0
    table = sparse.csr_array(
        (information[positive], (pairs.row[positive], pairs.col[positive])), shape=pairs.shape
    )
    filled = np.flatnonzero(np.diff(table.indptr))
    if len(totals) < _FEW:
        left, values, _ = np.linalg.svd(table.toarray())
    elif (n := len(filled)) < width:
        # the vectors that ARPACK adds to those of values above 0 are noise, without a seed
        left, values = np.zeros((len(totals), width)), np.zeros(width)
        left[filled, :n], values[:n], _ = np.linalg.svd(table[filled].toarray(), full_matrices=False)
    else:
        start = np.random.default_rng(seed).normal(size=len(totals)).astype(np.float32)
        left, values, _ = svds(table.astype(np.float32), k=width, v0=start)
    vectors = left[:, :width] * np.sqrt(values[:width])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(lengths > 1e-6, vectors / np.maximum(lengths, 1e-6), 0).astype(np.float32)
