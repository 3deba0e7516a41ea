"""Similar words for MacBERT's masks (Cui et al. 2020, section 3.2), from vectors trained on the corpus.

Vectors are gensim's word2vec (Mikolov et al. 2013). A word is replaced by the most similar word of the same
number of tokens, so that nothing shifts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from data.errors import InputError
from data.instances import SimilarWords, word_keys
from data.segmentation.segmenter import Segmenter
from data.tokenization import Tokenizer

TRAINING_CHARACTERS = 30_000_000  # enough: of a larger corpus, the first ones are used
MIN_COUNT = 5  # occurrences of a word, as in word2vec
DIMENSIONS = 100
LEAST_EPOCHS, MOST_EPOCHS = 3, 30  # a small corpus gets more epochs
TRAINED_WORDS = 5_000_000  # over all epochs
LEAST_SIMILAR = 0.5  # cosine; a word without one above it has no similar word
_ROWS = 1024  # words compared at once

NO_WORDS = SimilarWords(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int64))


def _stable_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Sentences:
    """The words of each sentence of some texts; iterates any number of times."""

    def __init__(self, texts: Callable[[], Iterable[str]], words_of: Segmenter):
        self.texts, self.words_of = texts, words_of

    def __iter__(self) -> Iterator[list[str]]:
        characters = 0
        for text in self.texts():
            sentence: list[str] = []
            for word in self.words_of.split(text):
                if word == "\n":
                    yield sentence
                    sentence = []
                else:
                    sentence.append(word)
            characters += len(text)
            if characters > TRAINING_CHARACTERS:
                return


def train_similar_words(
    texts: Callable[[], Iterable[str]], words_of: Segmenter, tokenizer: Tokenizer, *, seed: int
) -> SimilarWords:
    """Find similar words in some texts, read several times; a function of texts and seed."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise InputError(
            "the objective macbert needs word vectors: pip install 'jixu[macbert]' for what makes them"
        ) from None
    model = Word2Vec(
        vector_size=DIMENSIONS,
        min_count=MIN_COUNT,
        seed=seed + 1,
        workers=1,  # with more, the order of updates depends on the machine
        hashfxn=_stable_hash,
    )
    sentences = _Sentences(texts, words_of)
    model.build_vocab(sentences)
    if not len(model.wv):
        return NO_WORDS
    epochs = min(max(TRAINED_WORDS // max(model.corpus_total_words, 1), LEAST_EPOCHS), MOST_EPOCHS)
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    return _nearest(model.wv.index_to_key, model.wv.get_normed_vectors(), tokenizer)


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
