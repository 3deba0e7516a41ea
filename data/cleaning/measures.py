"""Measure many documents at once for filters and deduplication.

Substrings are compared by a polynomial hash modulo 2**64; with prefix sums any substring's hash takes one
subtraction (Karp and Rabin 1987). D = documents, L = sentences, G = n-grams.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from data.cleaning.normalise import to_simplified
from data.hashing import GOLDEN, mix

REPEATED_NGRAM = 10  # characters
_NO_LETTER = 0  # folded code of characters that are neither letters nor digits
_HAN_RANGES = [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2EBEF), (0x2F800, 0x2FA1F)]
_TABLE = 0x30000  # code points from here on are folded to one
_KANA_RANGES = [(0x3041, 0x3096), (0x30A1, 0x30FA), (0xFF66, 0xFF9D)]
_OTHER, _HAN, _SPACE, _DIGIT, _KANA = 0, 1, 2, 3, 4
_CHINESE = np.array([0, 1, 0, 0, -1], dtype=np.int8)  # what a character of each kind adds to the Chinese
_GROUP_BITS = 20  # of a packed hash, for the number of its document
_BY_PHRASE = str.maketrans("著藉瞭", "着借了")  # OpenCC simplifies these only within phrases


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of each document; arrays are [D] unless noted."""

    characters: np.ndarray  # without line ends
    # of the characters other than spaces; a run of digits counts as one, and kana against it
    han_share: np.ndarray
    letters_and_digits: np.ndarray
    repeated_sentences: np.ndarray  # share of characters in sentences that occurred earlier in the document
    repeated_ngrams: np.ndarray  # share of n-grams of REPEATED_NGRAM letters that did
    sentence_hashes: np.ndarray  # [L] uint64
    sentence_lengths: np.ndarray  # [L]
    first_sentence: np.ndarray  # [D+1]
    letters: Letters


@dataclass(frozen=True, slots=True)
class Letters:
    """Letters and digits of documents, folded, one after the other, for comparisons."""

    first: np.ndarray  # [D+1], start of each document
    prefixes: np.ndarray  # [n+1] uint64, prefix sums of the polynomial

    @classmethod
    def of(cls, codes: np.ndarray, first: np.ndarray) -> Letters:
        """Take any numbers as letters."""
        return cls(first, _prefixes(codes))

    def ngrams(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Hash every document's n-grams, [G] uint64; return also where each document's begin, [D+1].

        A document of fewer than n letters has one n-gram: all of it.
        """
        lengths = np.diff(self.first)
        counts = np.where(lengths < n, np.minimum(lengths, 1), lengths - n + 1)
        starts = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(starts[-1]) + np.repeat(self.first[:-1] - starts[:-1], counts)
        if (lengths >= n).all():
            return _substrings(self.prefixes, at, at + n), starts
        return _substrings(self.prefixes, at, at + np.repeat(np.minimum(lengths, n), counts)), starts


@cache
def _powers(count: int, base: int) -> np.ndarray:
    """Return base**0, base**1, .. modulo 2**64."""
    powers = np.ones(count, dtype=np.uint64)
    powers[1:] = np.uint64(base)
    return np.multiply.accumulate(powers)


_BASE = int(GOLDEN)
_INVERSE = pow(_BASE, -1, 2**64)


def _prefixes(codes: np.ndarray) -> np.ndarray:
    """Return prefix sums of code * base**place, [n+1]."""
    terms = codes.astype(np.uint64)
    terms *= _powers(1 << max(len(codes), 1).bit_length(), _BASE)[: len(codes)]
    return _running(terms, np.uint64)


def _substrings(prefixes: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Hash substrings independently of their place. High bits are good; low ones need mixing."""
    hashes = prefixes[ends]
    hashes -= prefixes[begins]
    hashes *= _powers(1 << max(len(prefixes) - 1, 1).bit_length(), _INVERSE)[begins]
    return hashes


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Give every code point's folded letter or digit, or _NO_LETTER, and its kind."""
    letters = np.zeros(_TABLE, dtype=np.uint32)
    kinds = np.full(_TABLE, _OTHER, dtype=np.uint8)
    for first, last in _HAN_RANGES:
        letters[first : last + 1] = np.arange(first, last + 1)
        kinds[first : last + 1] = _HAN
    for code in np.flatnonzero(kinds[:0x20000] != _HAN).tolist():
        if 0xD800 <= code <= 0xF8FF:
            continue
        character = chr(code)
        if character.isalnum():
            letters[code] = code
            if character.isdecimal():
                kinds[code] = _DIGIT
        elif character.isspace():
            kinds[code] = _SPACE
    for first, last in _KANA_RANGES:
        kinds[first : last + 1] = _KANA
    codes = np.flatnonzero(letters)
    letters[codes] = _folded(codes.tolist())
    return letters, kinds


def _folded(codes: list[int]) -> list[int]:
    """Fold letters to half width, simplified characters and lower case; one that becomes several stays."""
    lower = [chr(code).lower() if len(chr(code).lower()) == 1 else chr(code) for code in codes]
    plain = [unicodedata.normalize("NFKC", letter) for letter in lower]
    single = "\n".join([new if len(new) == 1 else "" for new in plain]).translate(_BY_PHRASE)
    # twice: some simplified forms are traditional forms of others
    folded = to_simplified(to_simplified(single)).lower().split("\n")
    return [ord(new if len(new) == 1 else old) for new, old in zip(folded, lower, strict=True)]


def _codes(text: str) -> np.ndarray:
    return np.minimum(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32), _TABLE - 1)


def letters_of(texts: Sequence[str]) -> Letters:
    """Extract the letters of some texts, folded: of one width and case, traditional characters simplified."""
    return _letters(_codes("".join(texts)), np.cumsum([0, *map(len, texts)]))


def _letters(codes: np.ndarray, bounds: np.ndarray) -> Letters:
    folded = _tables()[0][codes]
    is_letter = folded != _NO_LETTER
    return Letters.of(folded[is_letter], _running(is_letter)[bounds])


def _running(values: np.ndarray, dtype: type[np.generic] = np.int64) -> np.ndarray:
    """Sum the values before each place, [n+1]."""
    sums = np.zeros(len(values) + 1, dtype)
    np.cumsum(values, out=sums[1:])
    return sums


def measure(documents: Sequence[Sequence[str]]) -> Measures:
    """Measure documents given as their sentences."""
    counts = np.array([len(sentences) for sentences in documents], dtype=np.int64)
    text = "".join([f"{sentence}\n" for sentences in documents for sentence in sentences])
    codes = _codes(text)
    line_ends = np.flatnonzero(codes == 10)
    line_starts = np.concatenate([[0], line_ends + 1])
    first_sentence = np.concatenate([[0], np.cumsum(counts)])
    bounds = line_starts[first_sentence]  # of documents among the characters
    kind = _tables()[1][codes]
    sizes = np.diff(bounds)
    digit = kind == _DIGIT
    is_uncounted = kind == _SPACE  # line ends too
    is_uncounted[1:] |= digit[1:] & digit[:-1]
    counted = sizes - np.diff(_running(is_uncounted)[bounds])
    hashes = mix(_substrings(_prefixes(codes), line_starts[:-1], line_ends))
    own = _letters(codes, bounds)
    ngrams, first_ngram = own.ngrams(REPEATED_NGRAM)
    return Measures(
        sizes - counts,
        np.maximum(np.diff(_running(_CHINESE[kind])[bounds]), 0) / np.maximum(counted, 1),
        np.diff(own.first),
        _repeated(hashes, first_sentence, line_ends - line_starts[:-1]),
        _repeated(mix(ngrams), first_ngram),
        hashes,
        line_ends - line_starts[:-1],
        first_sentence,
        own,
    )


def _repeated(hashes: np.ndarray, first: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Measure the share, by weight, of each document's hashes that occurred earlier in it, [D]."""
    sizes = np.diff(first)
    group = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    low = np.uint64((1 << _GROUP_BITS) - 1)
    packed = (hashes & ~low) | group
    if weights is None:
        packed.sort()
        again = packed[1:][packed[1:] == packed[:-1]] & low
        return np.bincount(again.astype(np.int64), minlength=len(sizes)) / np.maximum(sizes, 1)
    order = np.argsort(packed, kind="stable")
    again = order[1:][packed[order[1:]] == packed[order[:-1]]]
    totals = np.diff(_running(weights)[first])
    repeated = np.bincount(group[again].astype(np.int64), weights[again], minlength=len(sizes))
    return repeated / np.maximum(totals, 1)
