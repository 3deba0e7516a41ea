"""Similar words for MacBERT's masks (Cui et al. 2020, section 3.2), from vectors of the corpus's own words.

A word is replaced by the most similar word of the same number of tokens, so that nothing shifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from data.instances import SimilarWords, word_keys
from data.segmentation.segmenter import Segmenter
from data.tokenization import Tokenizer

if TYPE_CHECKING:
    from scipy import sparse

TRAINING_CHARACTERS = 30_000_000  # enough: of a larger corpus, the first ones are used
MIN_COUNT = 5  # occurrences of a word
# Frequent words to each side, nearer ones counting more. A wide window finds words of the same subject, and a
# narrow one words of the same use: on laws 51% of the words of two characters have the part of speech (in
# jieba's dictionary) of their similar word, with a window of 5 48%, by word2vec 47%, by chance 36%.
WINDOW = 2
DIMENSIONS = 100
LEAST_SIMILAR = 0.5  # cosine; a word without one above it has no similar word
_ROWS = 1024  # words compared at once
_CONTEXT_POWER = 0.75  # of the frequencies of contexts (Levy et al. 2015, section 3.1)
# words; of fewer all singular values are computed, as ARPACK is not seeded where it finds the last one
_FEW = 1000

NO_WORDS = SimilarWords(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int64))


def find_similar_words(
    texts: Iterable[str], words_of: Segmenter, tokenizer: Tokenizer, *, seed: int
) -> SimilarWords:
    """Find similar words in some texts, in which a line end follows each sentence."""
    words, ids, sentences = _frequent_words(texts, words_of)
    width = min(DIMENSIONS, len(words) - 1)
    if width < 1:
        return NO_WORDS
    together = _near_each_other(len(words), ids, sentences)
    with threadpool_limits(1):  # with more, the order of sums depends on the machine's cores
        vectors = word_vectors(together, width, seed=seed)
    return _nearest(words, vectors, tokenizer)


def _frequent_words(texts: Iterable[str], words_of: Segmenter) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Find the words of MIN_COUNT occurrences, most frequent first, and where they occur: their numbers [N]
    and the number of the sentence of each [N].
    """
    numbers = {"\n": 0}
    parts = [np.empty(0, np.int32)]
    characters = 0
    for text in texts:
        words = (numbers.setdefault(word, len(numbers)) for word in words_of.split(text))
        parts.append(np.fromiter(words, np.int32))
        characters += len(text)
        if characters > TRAINING_CHARACTERS:
            break
    ids = np.concatenate(parts)
    counts = np.bincount(ids, minlength=len(numbers))
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")[: (counts >= MIN_COUNT).sum()]
    rank = np.full(len(numbers), -1, np.int32)
    rank[order] = np.arange(len(order))
    spellings = list(numbers)
    ranks, is_frequent = rank[ids], rank[ids] >= 0
    return [spellings[i] for i in order.tolist()], ranks[is_frequent], np.cumsum(ids == 0)[is_frequent]


def _near_each_other(V: int, ids: np.ndarray, sentences: np.ndarray) -> sparse.csr_array:
    """Count how often two of V words stand near each other in a sentence, [V, V]."""
    from scipy import sparse  # it takes half a second, which a refresh without a change does not need

    pairs = sparse.csr_array((V, V), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        is_near = sentences[distance:] == sentences[:-distance]
        near = ids[:-distance][is_near], ids[distance:][is_near]
        weights = np.full(len(near[0]), 1 / distance, np.float32)
        pairs += sparse.csr_array((weights, near), shape=(V, V))
    return pairs + pairs.T


def word_vectors(together: sparse.csr_array, width: int, *, seed: int) -> np.ndarray:
    """Compute vectors of unit length, [V, E] fp32; zero for words without neighbours.

    `together` [V, V], symmetric, says how often two words stand near each other; E is at most V - 1. Positive
    pointwise mutual information, and its truncated singular value decomposition (Levy, Goldberg and Dagan
    2015, sections 2 and 3.3: each side takes the root of the singular values). `seed` draws where it starts.
    """
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


def _nearest(words: Sequence[str], vectors: np.ndarray, tokenizer: Tokenizer) -> SimilarWords:
    # after a mark, as in a text: alone, SentencePiece would put a space before a word
    encoded = (tokenizer.encode(f"，{word}") for word in words)
    tokens = [ids[starts > 0] for ids, starts in encoded]
    lengths = np.array([0 if tokenizer.unknown_id in ids else len(ids) for ids in tokens])
    spellings: dict[bytes, int] = {}
    ids_of = np.array([spellings.setdefault(ids.tobytes(), len(spellings)) for ids in tokens])
    pairs: list[tuple[int, int]] = []
    for length in np.unique(lengths[lengths > 0]):
        members = np.flatnonzero(lengths == length)
        for begin in range(0, len(members), _ROWS):
            rows = members[begin : begin + _ROWS]
            cosines = vectors[rows] @ vectors[members].T
            # neither itself nor another case of it, which is the same to the tokenizer
            cosines[ids_of[rows][:, None] == ids_of[members]] = -1
            best = cosines.argmax(axis=1)
            good = cosines[np.arange(len(rows)), best] >= LEAST_SIMILAR
            pairs += zip(rows[good].tolist(), members[best[good]].tolist(), strict=True)
    if not pairs:
        return NO_WORDS
    sizes = np.array([len(tokens[word]) for word, _ in pairs])
    keys = word_keys(np.concatenate([tokens[word] for word, _ in pairs]), np.cumsum(sizes) - sizes, sizes)
    # of two words with the same tokens, the more frequent one counts
    unique, first = np.unique(keys, return_index=True)
    chosen = [tokens[pairs[i][1]] for i in first.tolist()]
    offsets = np.cumsum([0, *map(len, chosen)])
    return SimilarWords(unique, offsets, np.concatenate(chosen))
