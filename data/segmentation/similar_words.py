"""Similar words for MacBERT's masks (Cui et al. 2020, section 3.2), from vectors of the corpus's own words.

Vectors are those of positive pointwise mutual information with the words around, of fewer dimensions by a
singular value decomposition (Levy, Goldberg and Dagan 2015, "Improving distributional similarity with lessons
learned from word embeddings"). A word is replaced by the most similar word of the same number of tokens, so
that nothing shifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from data.instances import SimilarWords, word_keys
from data.segmentation.segmenter import Segmenter
from data.tokenization import Tokenizer

TRAINING_CHARACTERS = 30_000_000  # enough: of a larger corpus, the first ones are used
MIN_COUNT = 5  # occurrences of a word
# Frequent words to each side, nearer ones counting more. Wider windows find words of the same subject, and
# narrow ones words of the same use: on laws two characters have the part of speech (of jieba's dictionary)
# of their similar word in 50% of cases with 2, in 48% with 5, in 47% by word2vec, and in 36% by chance.
WINDOW = 2
DIMENSIONS = 100
LEAST_SIMILAR = 0.5  # cosine; a word without one above it has no similar word
_ROWS = 1024  # words compared at once

NO_WORDS = SimilarWords(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int64))


def find_similar_words(
    texts: Iterable[str], words_of: Segmenter, tokenizer: Tokenizer, *, seed: int
) -> SimilarWords:
    """Find similar words in some texts, in which a line end follows each sentence. `seed` starts the SVD."""
    words, ids, sentences = _frequent_words(texts, words_of)
    if not words:
        return NO_WORDS
    return _nearest(words, _vectors(len(words), ids, sentences, seed), tokenizer)


def _frequent_words(texts: Iterable[str], words_of: Segmenter) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Find the words of MIN_COUNT occurrences, most frequent first, and where they occur: their numbers [N]
    and the number of the sentence of each [N].
    """
    numbers = {"\n": 0}
    parts = [np.empty(0, np.int32)]
    characters = 0
    for text in texts:
        parts.append(
            np.array([numbers.setdefault(word, len(numbers)) for word in words_of.split(text)], np.int32)
        )
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


def _vectors(V: int, ids: np.ndarray, sentences: np.ndarray, seed: int) -> np.ndarray:
    """Compute a vector of length 1 for each of V words, or of length 0 if nothing is known of it, [V, D]."""
    # together they take a second to import
    from scipy.sparse import csr_array
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    pairs = csr_array((V, V), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        is_near = sentences[distance:] == sentences[:-distance]
        near = ids[:-distance][is_near], ids[distance:][is_near]
        weights = np.full(len(near[0]), 1 - (distance - 1) / WINDOW, np.float32)
        pairs += csr_array((weights, near), shape=(V, V))
    pairs = (pairs + pairs.T).tocoo()
    of_word = pairs.sum(axis=0, dtype=np.float64)
    expected = of_word[pairs.row] * of_word[pairs.col] / of_word.sum()
    information = np.log(pairs.data / expected).astype(np.float32)
    positive = csr_array((np.maximum(information, 0), (pairs.row, pairs.col)), shape=(V, V))
    with threadpool_limits(1):  # with more, the order of sums depends on the machine
        left, strengths, _ = randomized_svd(positive, min(DIMENSIONS, V), random_state=seed)
    vectors = left * np.sqrt(strengths)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _nearest(words: Sequence[str], vectors: np.ndarray, tokenizer: Tokenizer) -> SimilarWords:
    # after a mark, as in a text: alone, SentencePiece would put a space before a word
    encoded = (tokenizer.encode(f"，{word}") for word in words)
    tokens = [ids[starts > 0] for ids, starts in encoded]
    usable = [len(ids) > 0 and not (ids == tokenizer.unknown_id).any() for ids in tokens]
    lengths = np.array([len(ids) if good else 0 for ids, good in zip(tokens, usable, strict=True)])
    spellings: dict[bytes, int] = {}
    ids_of = np.array([spellings.setdefault(ids.tobytes(), len(spellings)) for ids in tokens])
    keys: list[np.ndarray] = []
    stand_ins: list[np.ndarray] = []
    for length in np.unique(lengths[lengths > 0]):
        members = np.flatnonzero(lengths == length)
        for begin in range(0, len(members), _ROWS):
            rows = members[begin : begin + _ROWS]
            cosines = vectors[rows] @ vectors[members].T
            # neither itself nor another case of it, which is the same to the tokenizer
            cosines[ids_of[rows][:, None] == ids_of[members]] = -1
            best = cosines.argmax(axis=1)
            good = cosines[np.arange(len(rows)), best] >= LEAST_SIMILAR
            for word, other in zip(rows[good].tolist(), members[best[good]].tolist(), strict=True):
                ids = tokens[word]
                keys.append(word_keys(ids, np.array([0]), np.array([len(ids)])))
                stand_ins.append(tokens[other])
    if not keys:
        return NO_WORDS
    # of two words with the same tokens, the more frequent one counts
    unique, first = np.unique(np.concatenate(keys), return_index=True)
    chosen = [stand_ins[i] for i in first.tolist()]
    offsets = np.cumsum([0, *map(len, chosen)])
    return SimilarWords(unique, offsets, np.concatenate(chosen))
