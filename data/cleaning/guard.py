"""The guard: find documents that contain text of an evaluation set.

A text of 13 letters or more is found by any 13 of its letters in a row (Brown et al. 2020, appendix C, use 13
words; 13 letters or Han characters are about eight words), one of 8 to 12 wherever it stands whole, one of 6
or 7 where it is a whole sentence. Width, case, punctuation, spaces and traditional characters never matter.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from data.cleaning.measures import Letters, letters_of
from data.cleaning.normalise import clean_text
from data.cleaning.settings import CleaningRules
from data.errors import InputError
from data.sources import DAMAGED, one_line

_FILTER_BITS = 24
SHORTEST = 6  # letters; a shorter evaluation text proves nothing
_SUBSTRING = 8  # letters; a shorter one proves something only as a whole sentence


@dataclass(frozen=True)
class Guard:
    """Texts that must not be in a corpus."""

    # ascending hashes, by their number of letters: n-grams, and whole texts that are shorter
    hashes: Mapping[int, np.ndarray]
    filter: np.ndarray  # bool, by the high bits of a hash: excludes most n-grams of a corpus


@lru_cache(maxsize=1)
def make_guard(files: tuple[str, ...], ngram: int, cleaning: CleaningRules) -> Guard:
    """Make a guard from every text of every row of some files, cleaned like the corpus to match it.

    Raises InputError if a file cannot be read to its end, or has no text.
    """
    grams: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    for path in files:
        before = len(grams)
        texts_of = (clean_text(text, cleaning) for text in _texts(path))
        while texts := list(islice(texts_of, 10_000)):
            hashes, size, _ = _parts(texts, ngram)
            if len(hashes):
                grams.append(hashes)
                sizes.append(size)
        if len(grams) == before:
            raise InputError(f"guard file {path}: no text of {SHORTEST} letters or more in it")
    return _guard(np.concatenate(grams), np.concatenate(sizes)) if grams else _guard(*_parts([], ngram)[:2])


def _parts(texts: Sequence[str], ngram: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts by which texts are found: their hashes, numbers of letters, and texts."""
    letters = letters_of(texts)
    hashes, first = letters.ngrams(ngram)
    text = np.repeat(np.arange(len(texts)), np.diff(first))
    size = np.minimum(np.diff(letters.first), ngram)[text]
    proves = size >= SHORTEST
    return hashes[proves], size[proves], text[proves]


def _guard(hashes: np.ndarray, sizes: np.ndarray) -> Guard:
    table = np.zeros(1 << _FILTER_BITS, dtype=bool)
    table[hashes >> np.uint64(64 - _FILTER_BITS)] = True
    return Guard({size: np.unique(hashes[sizes == size]) for size in np.unique(sizes).tolist()}, table)


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


def count_hits(guard: Guard, documents: Sequence[Sequence[str]]) -> np.ndarray:
    """Count the n-grams and texts of the guard in each document, given as its sentences, [D]."""
    return np.bincount(_find(guard, documents)[0], minlength=len(documents))


def _find(guard: Guard, documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """The documents and hashes of all matches."""
    sentences = letters_of([sentence for document in documents for sentence in document])
    bounds = np.cumsum([0, *map(len, documents)])
    whole = Letters(sentences.first[bounds], sentences.prefixes)
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for size, hashes in guard.hashes.items():
        is_sentence = size < _SUBSTRING
        grams, first = (sentences if is_sentence else whole).ngrams(size)
        maybe = np.flatnonzero(guard.filter[grams >> np.uint64(64 - _FILTER_BITS)])
        hit = maybe[_is_in(grams[maybe], hashes)]
        at = np.searchsorted(first, hit, side="right") - 1
        if is_sentence:
            at, hit = (values[np.diff(sentences.first)[at] == size] for values in (at, hit))
            at = np.searchsorted(bounds, at, side="right") - 1
        places.append(at)
        found.append(grams[hit])
    return np.concatenate(places), np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Leak:
    """Evaluation texts that a corpus contains."""

    texts: int  # long enough to prove anything
    found: tuple[str, ...]  # those in the corpus, in order
    documents: int  # that contain one


def find_leak(texts: Iterable[str], documents: Iterable[str], ngram: int = 13) -> Leak:
    """Find the texts that documents (a sentence a line) contain, by the guard's rule."""
    unique = list(dict.fromkeys(texts))
    hashes, sizes, text = _parts(unique, ngram)
    guard = _guard(hashes, sizes)
    seen, holding = np.empty(0, np.uint64), 0
    rest = (document.split("\n") for document in documents)
    while batch := list(islice(rest, 1000)):
        places, found = _find(guard, batch)
        holding += len(np.unique(places))
        seen = np.union1d(seen, found)
    leaked = np.unique(text[_is_in(hashes, seen)])
    return Leak(len(np.unique(text)), tuple(unique[at] for at in leaked.tolist()), holding)


def _is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values
