"""What counting neighbours in the training text knows: word vectors to start from, and a loss to beat.

V = vocabulary, n = masked tokens, E = width of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from albert.batching import Instances, InstanceStream, held_out_rows
from data.segmentation import word_vectors

# how often one token is followed by another, 1, 2, ... apart, [V, V] each
Pairs = Sequence[sparse.csr_array]
_MOST_COUNTED = 1 << 26  # tokens of training text: half a minute
_WINDOW = 4  # neighbours on each side that a word vector is made of; a pair d apart counts 1/d


def count_neighbours(stream: InstanceStream, vocab_size: int, window: int = _WINDOW) -> Pairs:
    """Count pairs of tokens up to `window` apart in the training text, or in 67 million tokens of more."""
    pairs = [sparse.csr_array((vocab_size, vocab_size), dtype=np.float32) for _ in range(window)]
    counted = 0
    for instances, rows in stream.training_text():
        text = instances.take(rows)
        ids = text.input_ids.astype(np.int64)
        row = np.repeat(np.arange(len(rows)), text.lengths)
        for d in range(1, window + 1):
            inside = row[:-d] == row[d:]
            found = (ids[:-d][inside], ids[d:][inside])
            ones = np.ones(len(found[0]), dtype=np.float32)
            pairs[d - 1] += sparse.csr_array((ones, found), shape=(vocab_size, vocab_size))
        counted += len(ids)
        if counted > _MOST_COUNTED:
            break
    return pairs


def frequencies_of(pairs: Pairs) -> np.ndarray:
    """The share of every token in the text [V], none 0."""
    counts = pairs[0].sum(axis=0) + 1.0
    return counts / counts.sum()


def token_vectors(pairs: Pairs, width: int, *, special_ids: np.ndarray, seed: int) -> np.ndarray:
    """Vectors [V, E] fp32 of unit length; zero for special tokens and those without neighbours."""
    together = sum(counts / (d + 1) for d, counts in enumerate(pairs))
    words = np.ones(together.shape[0], dtype=np.float32)
    words[special_ids] = 0
    only = sparse.diags_array(words)
    return word_vectors(only @ (together + together.T) @ only, width, seed=seed)


def bigram_loss(stream: InstanceStream, instances: Instances) -> float:
    """The mean loss in nats on masked tokens of a bigram count model of the training text: what a trained
    model must beat.

    It sees what the model sees: p(token | left) p(token | right) / p(token), normalised, where each side is
    smoothed by Witten and Bell's rule (Chen and Goodman 1999, section 2.6) and a masked neighbour says
    nothing.
    """
    pairs = count_neighbours(stream, stream.info.vocab_size, window=1)
    following, frequencies = pairs[0], frequencies_of(pairs)
    preceding, mask_id = following.T.tocsr(), stream.info.vocabulary.mask_id
    total, tokens = 0.0, 0
    for batch in stream.pack_held_out(instances, held_out_rows(instances, 4096)):
        at, labels = (each.numpy().copy() for each in batch.masked())
        ids = batch.input_ids.numpy()
        # a sequence begins and ends with a special token, which is never masked
        left, of_left = _given(following, ids[at - 1], mask_id)
        right, of_right = _given(preceding, ids[at + 1], mask_id)
        each = np.arange(len(at))
        p = frequencies[labels]
        p_left, p_right = (
            (1 - share) * p + share * rows[each, labels]
            for rows, share in ((left, of_left), (right, of_right))
        )
        # the sum over the vocabulary of the product; only what both neighbours were seen with is not 1
        both = left.multiply(right).multiply(1 / frequencies[None]).sum(axis=1)
        norm = 1 - of_left * of_right * (1 - both)
        total -= float(np.log(p_left * p_right / p / norm).sum())
        tokens += len(at)
    return total / tokens


def _given(
    pairs: sparse.csr_array, neighbours: np.ndarray, mask_id: int
) -> tuple[sparse.csr_array, np.ndarray]:
    """The distributions of tokens beside each neighbour [n, V], and how much each is trusted [n]."""
    rows = pairs[neighbours]
    times, kinds = rows.sum(axis=1), np.diff(rows.indptr)
    times = np.where(neighbours == mask_id, 0, times)
    return sparse.diags_array(1 / np.maximum(times, 1)) @ rows, times / np.maximum(times + kinds, 1)
