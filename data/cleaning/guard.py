"""The guard: documents that hold text of an evaluation set, found by long character n-grams they share.

Brown et al. 2020, appendix C, use 13 words; here it is 13 letters or Han characters, about eight words, with
case, punctuation and spaces left aside. A text shorter than that counts where a sentence is the same.
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
    """What must not be in a corpus."""

    ngram: int
    hashes: np.ndarray  # [G] uint64 ascending, of the n-grams
    sentences: np.ndarray  # [s] uint64 ascending, of whole texts shorter than an n-gram
    filter: np.ndarray  # bool, by the high bits of a hash: most n-grams of a corpus end here


@lru_cache(maxsize=1)
def make_guard(files: tuple[str, ...], ngram: int, cleaning: CleaningRules) -> Guard:
    """The guard of some files: every text of every row, cleaned as the corpus is, or it would miss what
    cleaning changed. Raises InputError if a file cannot be read to its end, or gives no text.
    """
    grams: list[np.ndarray] = []
    short: list[np.ndarray] = []
    for path in files:
        found = False
        texts_of = (clean_text(text, cleaning) for text in _texts(path))
        while texts := list(islice(texts_of, 10_000)):
            letters = letters_of(texts)
            hashes, first = letters.ngrams(ngram)
            lengths = np.diff(letters.first)
            of_text = np.repeat(lengths, np.diff(first))
            found = found or bool((lengths >= SHORTEST).any())
            grams.append(np.unique(hashes[of_text >= ngram]))
            short.append(hashes[(of_text >= SHORTEST) & (of_text < ngram)])
        if not found:
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
        # what comes after the damage would not be kept out of the corpus
        raise InputError(
            f"guard file {path} cannot be read to its end ({type(error).__name__}: {one_line(error)}): "
            "mend it, or leave it out"
        ) from None


def count_hits(guard: Guard, documents: Sequence[Sequence[str]], measures: Measures) -> np.ndarray:
    """How many n-grams and sentences of the guard each document holds, [D]."""
    hashes, first = measures.letters.ngrams(guard.ngram)
    maybe = np.flatnonzero(guard.filter[hashes >> np.uint64(64 - _FILTER_BITS)])
    held = maybe[_is_in(hashes[maybe], guard.hashes)]
    hits = np.bincount(np.searchsorted(first, held, side="right") - 1, minlength=len(documents))
    if len(guard.sentences):
        sentences = letters_of([sentence for one in documents for sentence in one])
        lengths = np.diff(sentences.first)
        short = np.flatnonzero((lengths >= SHORTEST) & (lengths < guard.ngram))
        whole, at = sentences.ngrams(guard.ngram)
        same = short[_is_in(whole[at[short]], guard.sentences)]
        hits += np.diff(np.searchsorted(same, measures.first_sentence))
    return hits


@dataclass(frozen=True, slots=True)
class Leak:
    """Evaluation texts that a corpus holds."""

    texts: int  # that are long enough to prove anything
    found: tuple[str, ...]  # of them in the corpus, in the order given
    documents: int  # that hold one


def find_leak(texts: Iterable[str], documents: Iterable[str], ngram: int = 13) -> Leak:
    """Which texts stand in the documents, by the guard's rule: an n-gram of letters in common; of a text
    shorter than that, a whole sentence. Documents have a sentence on each line.
    """
    asked = list(dict.fromkeys(texts))
    letters = letters_of(asked)
    hashes, first = letters.ngrams(ngram)
    lengths = np.diff(letters.first)
    of_text = np.repeat(np.arange(len(asked)), np.diff(first))
    proves = lengths >= SHORTEST
    is_long = lengths >= ngram
    grams = np.unique(hashes[is_long[of_text]])
    short = np.unique(hashes[(proves & ~is_long)[of_text]])
    seen: list[np.ndarray] = []
    holding = 0
    documents = iter(documents)
    while some := list(islice(documents, 1000)):
        of_documents = _held(some, ngram, grams, lambda n: n >= ngram)
        sentences = [sentence for one in some for sentence in one.split("\n")]
        of_sentences = _held(sentences, ngram, short, lambda n: (n >= SHORTEST) & (n < ngram))
        document_of = np.repeat(np.arange(len(some)), [one.count("\n") + 1 for one in some])
        places = np.concatenate([of_documents[0], document_of[of_sentences[0]]])
        holding += len(np.unique(places))
        seen += [of_documents[1], of_sentences[1]]
    known = np.unique(np.concatenate([np.empty(0, np.uint64), *seen]))
    hit = np.zeros(len(asked), dtype=bool)
    hit[of_text[_is_in(hashes, known)]] = True
    found = tuple(asked[at] for at in np.flatnonzero(hit & proves).tolist())
    return Leak(int(proves.sum()), found, holding)


def _held(
    texts: Sequence[str], ngram: int, known: np.ndarray, counts: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Of the texts whose number of letters counts: which text each known n-gram stands in, and its hash."""
    letters = letters_of(texts)
    hashes, first = letters.ngrams(ngram)
    of_text = np.repeat(np.arange(len(texts)), np.diff(first))
    held = _is_in(hashes, known) & counts(np.diff(letters.first))[of_text]
    return of_text[held], hashes[held]


def _is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values
