"""The guard: find documents that contain text of an evaluation set, by the long character n-grams they share.

Brown et al. 2020, appendix C, use 13 words; here it is 13 letters or Han characters, about eight words,
without case, punctuation and spaces. A shorter text matches only a whole sentence.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from data.cleaning.measures import Measures, letters_of
from data.cleaning.normalise import clean_text
from data.cleaning.settings import CleaningRules
from data.errors import InputError
from data.sources import DAMAGED, one_line

_FILTER_BITS = 24
SHORTEST = 6  # letters; a shorter evaluation text proves nothing


@dataclass(frozen=True)
class Guard:
    """Texts that must not be in a corpus."""

    ngram: int
    hashes: np.ndarray  # [G] uint64 ascending, of the n-grams
    sentences: np.ndarray  # [s] uint64 ascending, of whole texts shorter than an n-gram
    filter: np.ndarray  # bool, by the high bits of a hash: excludes most n-grams of a corpus


@lru_cache(maxsize=1)
def make_guard(files: tuple[str, ...], ngram: int, cleaning: CleaningRules) -> Guard:
    """Make a guard from every text of every row of some files, cleaned like the corpus to match it.

    Raises InputError if a file cannot be read to its end, or has no text.
    """
    grams: list[np.ndarray] = []
    short: list[np.ndarray] = []
    for path in files:
        has_text = False
        texts_of = (clean_text(text, cleaning) for text in _texts(path))
        while texts := list(islice(texts_of, 10_000)):
            letters = letters_of(texts)
            hashes, first = letters.ngrams(ngram)
            lengths = np.diff(letters.first)
            of_text = np.repeat(lengths, np.diff(first))
            has_text = has_text or bool((lengths >= SHORTEST).any())
            grams.append(np.unique(hashes[of_text >= ngram]))
            short.append(hashes[(of_text >= SHORTEST) & (of_text < ngram)])
        if not has_text:
            raise InputError(f"guard file {path}: no text of {SHORTEST} letters or more in it")
    hashes = np.unique(np.concatenate([*grams, np.empty(0, np.uint64)]))
    table = np.zeros(1 << _FILTER_BITS, dtype=bool)
    table[hashes >> np.uint64(64 - _FILTER_BITS)] = True
    return Guard(ngram, hashes, np.unique(np.concatenate([*short, np.empty(0, np.uint64)])), table)


def _texts(path: str) -> Iterator[str]:
    from data.sources import read_texts

    if not Path(path).is_file():
        raise InputError(
            f"guard file {path} is no file: check the path, and name every evaluation file by itself, "
            "without folders and globs"
        )
    try:
        yield from read_texts(path)
    except InputError:
        raise
    except (*DAMAGED, pa.ArrowException, csv.Error, ValueError, RecursionError) as error:
        # texts after the damage would not be kept out of the corpus
        raise InputError(
            f"guard file {path} cannot be read to its end ({type(error).__name__}: {one_line(error)}): "
            "mend it, or leave it out"
        ) from None


def count_hits(guard: Guard, documents: Sequence[Sequence[str]], measures: Measures) -> np.ndarray:
    """Count the n-grams and sentences of the guard in each document, [D]."""
    hashes, first = measures.letters.ngrams(guard.ngram)
    maybe = np.flatnonzero(guard.filter[hashes >> np.uint64(64 - _FILTER_BITS)])
    hit = maybe[_is_in(hashes[maybe], guard.hashes)]
    hits = np.bincount(np.searchsorted(first, hit, side="right") - 1, minlength=len(documents))
    if len(guard.sentences):
        sentences = letters_of([sentence for document in documents for sentence in document])
        lengths = np.diff(sentences.first)
        short = np.flatnonzero((lengths >= SHORTEST) & (lengths < guard.ngram))
        whole, at = sentences.ngrams(guard.ngram)
        same = short[_is_in(whole[at[short]], guard.sentences)]
        hits += np.diff(np.searchsorted(same, measures.first_sentence))
    return hits


@dataclass(frozen=True, slots=True)
class Leak:
    """Evaluation texts that a corpus contains."""

    texts: int  # long enough to prove anything
    found: tuple[str, ...]  # those in the corpus, in order
    documents: int  # that contain one


def find_leak(texts: Iterable[str], documents: Iterable[str], ngram: int = 13) -> Leak:
    """Find the texts that documents (a sentence a line) contain, by the guard's rule.

    A text counts by an n-gram of letters in common, or if it is shorter by a whole sentence.
    """
    unique = list(dict.fromkeys(texts))
    letters = letters_of(unique)
    hashes, first = letters.ngrams(ngram)
    lengths = np.diff(letters.first)
    of_text = np.repeat(np.arange(len(unique)), np.diff(first))
    proves = lengths >= SHORTEST
    is_long = lengths >= ngram
    grams = np.unique(hashes[is_long[of_text]])
    short = np.unique(hashes[(proves & ~is_long)[of_text]])
    seen = [np.empty(0, np.uint64)]
    holding = 0
    documents = iter(documents)
    while batch := list(islice(documents, 1000)):
        of_documents = _matches(batch, ngram, grams, lambda n: n >= ngram)
        sentences = [sentence for document in batch for sentence in document.split("\n")]
        of_sentences = _matches(sentences, ngram, short, lambda n: (n >= SHORTEST) & (n < ngram))
        document_of = np.repeat(np.arange(len(batch)), [text.count("\n") + 1 for text in batch])
        places = np.concatenate([of_documents[0], document_of[of_sentences[0]]])
        holding += len(np.unique(places))
        seen += [of_documents[1], of_sentences[1]]
    matched = np.unique(np.concatenate(seen))
    hit = np.zeros(len(unique), dtype=bool)
    hit[of_text[_is_in(hashes, matched)]] = True
    leaked = tuple(unique[at] for at in np.flatnonzero(hit & proves).tolist())
    return Leak(int(proves.sum()), leaked, holding)


def _matches(
    texts: Sequence[str], ngram: int, ascending: np.ndarray, counts: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Match n-grams in `ascending` of texts whose number of letters counts; return their texts and hashes."""
    letters = letters_of(texts)
    hashes, first = letters.ngrams(ngram)
    of_text = np.repeat(np.arange(len(texts)), np.diff(first))
    is_match = _is_in(hashes, ascending) & counts(np.diff(letters.first))[of_text]
    return of_text[is_match], hashes[is_match]


def _is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values
