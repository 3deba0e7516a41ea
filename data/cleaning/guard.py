"""The guard: find documents that contain text of an evaluation set.

A text of 13 letters or more is found by any 13 of its letters in a row (Brown et al. 2020, appendix C, use 13
words; 13 letters or Han characters are about eight words), one of 8 to 12 wherever it stands whole, one of 6
or 7 where it is a whole sentence. Two sentences of a pair, of 4 to 7 letters each, are found in a document
that holds both. Width, case, punctuation, spaces and traditional characters never matter.

Where set phrases are common, a share of a text's n-grams can be asked for in place of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from data.cleaning.measures import Letters, letters_of
from data.cleaning.normalise import clean_text, to_simplified
from data.cleaning.settings import CleaningRules, GuardRules
from data.errors import InputError
from data.files import remembered
from data.hashing import GOLDEN
from data.instances import take_ranges
from data.sources import one_line, read_text_rows

_FILTER_BITS = 24
SHORTEST = 6  # letters; a shorter evaluation text proves nothing
_SUBSTRING = 8  # letters; a shorter one proves something only as a whole sentence, or beside its pair
_OF_PAIR = 4  # letters of each sentence of a pair


@dataclass(frozen=True)
class Guard:
    """Texts that must not be in a corpus. Hashes are by their number of letters, ascending."""

    hashes: Mapping[int, np.ndarray]  # of n-grams, and of whole texts that are shorter
    members: Mapping[int, np.ndarray]  # of the sentences of pairs
    pairs: np.ndarray  # [P, 2], ascending by the first
    filter: np.ndarray  # bool, by the high bits of a hash: excludes most n-grams of a corpus
    share: float  # of a text's n-grams that make it found
    grams: np.ndarray  # [G, 2] n-grams, ascending, and their texts' numbers; empty: any makes it found


@dataclass(frozen=True)
class _Parts:
    """The parts by which texts are found: their hashes, numbers of letters, and numbers of the texts."""

    hashes: np.ndarray
    sizes: np.ndarray
    texts: np.ndarray
    pairs: np.ndarray  # [P, 2] hashes of two sentences that are found together
    pair_sizes: np.ndarray
    pair_texts: np.ndarray


@remembered
def make_guard(files: tuple[str, ...], ngram: int, cleaning: CleaningRules, share: float = 0.0) -> Guard:
    """Make a guard from every text of every row of some files, cleaned like the corpus to match it.

    Raises InputError if a file cannot be read to its end, or has no text.
    """
    parts: list[_Parts] = []
    for path in files:
        rows = ([clean_text(text, cleaning) for text in row] for row in _rows(path))
        of_file = []
        while batch := list(islice(rows, 10_000)):
            of_file.append(_parts(batch, ngram))
        if not sum(len(part.hashes) + len(part.pairs) for part in of_file):
            raise InputError(f"guard file {path}: no text of {SHORTEST} letters or more in it")
        parts += of_file
    return _guard(parts, share)


def _parts(rows: Sequence[Sequence[str]], ngram: int) -> _Parts:
    letters = letters_of([text for row in rows for text in row])
    lengths = np.diff(letters.first)
    hashes, first = letters.ngrams(ngram)
    texts = np.repeat(np.arange(len(lengths)), np.diff(first))
    sizes = np.minimum(lengths, ngram)[texts]
    proves = sizes >= SHORTEST
    pairs = _short_pairs(rows, lengths)
    return _Parts(hashes[proves], sizes[proves], texts[proves], hashes[first[pairs]], lengths[pairs], pairs)


def _short_pairs(rows: Sequence[Sequence[str]], lengths: np.ndarray) -> np.ndarray:
    """Find rows with two sentences that prove nothing alone; return the numbers of both, [P, 2]."""
    pairs: list[list[int]] = []
    end = 0
    for row in rows:
        begin, end = end, end + len(row)
        pair = [number for number in range(begin, end) if lengths[number] >= _OF_PAIR]
        pair = sorted(pair, key=lambda number: row[number - begin].isascii())[:2]  # ids and ASCII labels last
        if len(pair) < 2 or lengths[pair].max() >= _SUBSTRING:
            continue
        folded = (to_simplified(row[number - begin]).lower() for number in pair)
        first, second = ("".join(filter(str.isalnum, text)) for text in folded)
        if first not in second and second not in first:  # else one of them would be enough
            pairs.append(pair)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _guard(parts: Sequence[_Parts], share: float = 0.0) -> Guard:
    hashes, sizes, pairs, pair_sizes = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("hashes", "sizes", "pairs", "pair_sizes")
    )
    grams = np.empty((0, 2), np.uint64)
    if share:
        texts = [part.texts + (number << 32) for number, part in enumerate(parts)]  # of different parts
        numbers = np.unique(np.concatenate(texts), return_inverse=True)[1]
        grams = np.unique(np.stack([hashes, numbers.astype(np.uint64)], 1), axis=0)
    table = np.zeros(1 << _FILTER_BITS, dtype=bool)
    table[np.append(hashes, pairs) >> np.uint64(64 - _FILTER_BITS)] = True
    return Guard(
        hashes=_by_size(hashes, sizes),
        members=_by_size(pairs, pair_sizes),
        pairs=pairs[np.argsort(pairs[:, 0])],
        filter=table,
        share=share,
        grams=grams,
    )


def _by_size(hashes: np.ndarray, sizes: np.ndarray) -> dict[int, np.ndarray]:
    return {size: np.unique(hashes[sizes == size]) for size in np.unique(sizes).tolist()}


def _rows(path: str) -> Iterator[tuple[str, ...]]:
    if not Path(path).is_file():
        raise InputError(
            f"guard file {path} is no file: check the path, and name every evaluation file by itself, "
            "without folders and globs"
        )
    try:
        yield from read_text_rows(path)
    except Exception as error:  # of whatever library; texts after the damage would not be kept out
        raise InputError(
            f"guard file {path} cannot be read to its end ({type(error).__name__}: {one_line(error)}): "
            "mend it, or leave it out"
        ) from None


def count_hits(guard: Guard, documents: Sequence[Sequence[str]]) -> np.ndarray:
    """Count the n-grams, texts and sentences of pairs in each document, given as its sentences, [D]."""
    return np.bincount(_find(guard, documents)[0], minlength=len(documents))


def _find(guard: Guard, documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents and hashes of all matches, and where the guard has a share the numbers of the texts
    of which a document holds it.
    """
    sentences = letters_of([sentence for document in documents for sentence in document])
    bounds = np.cumsum([0, *map(len, documents)])
    whole = Letters(sentences.first[bounds], sentences.prefixes)
    found = []
    for size, hashes in guard.hashes.items():
        at, hit = _hits(sentences if size < _SUBSTRING else whole, size, hashes, guard.filter)
        if size < _SUBSTRING:
            is_whole = np.diff(sentences.first)[at] == size
            at, hit = np.searchsorted(bounds, at[is_whole], side="right") - 1, hit[is_whole]
        found.append((at, hit))
    members = [_hits(whole, size, hashes, guard.filter) for size, hashes in guard.members.items()]
    pairs = _both(guard.pairs, *_joined(members))
    places, hits = _joined(found)
    numbers = np.empty(0, np.int64)
    if guard.share:
        places, hits, numbers = _enough(guard, places, hits)
    return *_joined([(places, hits), pairs]), numbers


def _enough(guard: Guard, places: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keep the documents and hashes of texts of which a document holds the guard's share; and the texts."""
    here = np.unique(np.stack([places.astype(np.uint64), found], 1), axis=0)
    begin, end = (np.searchsorted(guard.grams[:, 0], here[:, 1], side) for side in ("left", "right"))  # type: ignore[call-overload]
    numbers = guard.grams[take_ranges(begin, end - begin), 1]
    match = np.repeat(np.arange(len(here)), end - begin)
    both = np.stack([here[match, 0], numbers], 1)
    (of_document, which, held) = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    sizes = np.bincount(guard.grams[:, 1].astype(np.int64))[of_document[:, 1].astype(np.int64)]
    is_enough = held / sizes >= guard.share
    kept = here[np.unique(match[is_enough[which.ravel()]])]
    return kept[:, 0].astype(np.int64), kept[:, 1], of_document[is_enough, 1].astype(np.int64)


def _hits(
    letters: Letters, size: int, hashes: np.ndarray, maybe: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the texts that hold n-grams of a size among `hashes`, and these hashes."""
    grams, first = letters.ngrams(size)
    at = np.flatnonzero(maybe[grams >> np.uint64(64 - _FILTER_BITS)])
    at = at[_is_in(grams[at], hashes)]
    return np.searchsorted(first, at, side="right") - 1, grams[at]


def _both(pairs: np.ndarray, places: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the documents that hold both sentences of a pair, and their hashes."""
    here = found + places.astype(np.uint64) * GOLDEN
    begin, end = (np.searchsorted(pairs[:, 0], found, side) for side in ("left", "right"))  # type: ignore[call-overload]
    rows, document = take_ranges(begin, end - begin), np.repeat(places, end - begin)
    both = np.isin(pairs[rows, 1] + document.astype(np.uint64) * GOLDEN, here)
    return np.repeat(document[both], 2), pairs[rows[both]].ravel()


def _joined(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    places, hashes = zip((np.empty(0, np.int64), np.empty(0, np.uint64)), *found, strict=True)
    return np.concatenate(places), np.concatenate(hashes)


@dataclass(frozen=True, slots=True)
class Leak:
    """Evaluation texts that a corpus contains."""

    texts: int  # long enough to prove anything
    found: tuple[str, ...]  # those in the corpus, in order
    rows: tuple[int, ...]  # those with such a text, numbered from 0
    documents: int  # that contain one
    share: float  # of a text's n-grams that made it found; 0: any one of them


def find_leak(rows: Sequence[Sequence[str]], documents: Iterable[str], share: float = 0.0) -> Leak:
    """Find the texts of rows that documents (a sentence a line) contain, by the guard's rule for a share."""
    parts = _parts(rows, GuardRules().ngram)
    guard = _guard([parts], share)
    seen, held, holding = np.empty(0, np.uint64), np.empty(0, np.int64), 0
    rest = (document.split("\n") for document in documents)
    while batch := list(islice(rest, 1000)):
        places, found, numbers = _find(guard, batch)
        holding += len(np.unique(places))
        seen, held = np.union1d(seen, found), np.union1d(held, numbers)
    texts = [text for row in rows for text in row]
    row_of = [number for number, row in enumerate(rows) for _ in row]
    alone = np.unique(parts.texts)
    leaked = alone[held] if share else parts.texts[_is_in(parts.hashes, seen)]
    leaked = np.union1d(leaked, parts.pair_texts[_is_in(parts.pairs, seen).all(1)])
    known = np.union1d(alone, parts.pair_texts)
    leaks = dict.fromkeys(texts[at] for at in leaked)
    found_in = dict.fromkeys(row_of[at] for at in leaked)
    return Leak(len({texts[at] for at in known}), tuple(leaks), tuple(found_in), holding, share)


def _is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(values.shape, dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values
