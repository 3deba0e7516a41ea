"""Segment Chinese text into jieba's words, with its Rust port wherever the two agree.

jieba cuts a text into blocks (Han characters, letters, digits and a few ASCII signs), finds each block's most
probable words of its dictionary, and lets a hidden Markov model join the remaining single characters. The
port does the second step ten times faster. It differs where other characters are beside Han ones, and where
a repeated pattern makes several cuts equally likely: those blocks go to jieba itself. The port's Markov model
is less precise, so jieba's is computed here for all single characters at once, in its order of operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data.errors import InputError
from data.files import read_lines

if TYPE_CHECKING:
    import jieba

_LETTERS = "a-zA-Z0-9"
_SIGNS = "+#&._%\\-"
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN = "\u4e00-\u9fd5"
_BLOCK = f"[{_HAN}{_LETTERS}{_SIGNS}{_RARE}]"
# blocks that the port may cut differently: with signs, rare characters, letters beside Han characters, or
# one to three characters three times in a row
_disputed = re.compile(
    rf"(?<!{_BLOCK}){_BLOCK}*?(?:[{_SIGNS}{_RARE}]|[{_HAN}][{_LETTERS}]|[{_LETTERS}][{_HAN}]"
    rf"|([{_HAN}]{{1,3}}?)\1\1){_BLOCK}*+"
)
# how jieba cuts text without Han characters (its finalseg.re_skip), except words of its dictionary
_latin = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
# word, count and tag of a user dictionary; a term of two words would be read as a word and its tag
_dictionary_line = re.compile(r"(\S+)(?:\s+(\d+))?(?:\s+(?:[a-z]+|[A-Z]+|[A-Z][a-z]))?")
LATIN_WORDS = ("AT&T", "c#", "C#", "c++", "C++")

_STATES = "BEMS"  # begin, end, middle of a word, single; in jieba's order of preference
_BEFORE = {"B": "ES", "E": "BM", "M": "BM", "S": "ES"}


class Segmenter:
    """Segments text by jieba's dictionary and the user's files (jieba's format: word [count] [tag] a line).

    Raises InputError for a user dictionary that cannot be read.
    """

    def __init__(self, dictionaries: Sequence[Path] = ()):
        # a quarter of a second, which a refresh without a change does not need
        import rjieba

        self._user_words = _user_words(dictionaries)
        self._fast = rjieba.Jieba()
        latin = {*LATIN_WORDS, *(word for word, _ in self._user_words if word.isascii())}
        self._latin_words = re.compile("|".join(map(re.escape, sorted(latin))))
        if self._user_words:
            for word, _ in self._user_words:
                self._fast.add_word(word, self._exact.FREQ[word], None)
            # of a word that jieba had, its total keeps the old count too; all probabilities depend on it
            self._fast.add_word("\n", self._exact.total - sum(self._exact.FREQ.values()), None)
        self._cut_exactly = lru_cache(maxsize=1 << 16)(self._cut_exactly_uncached)

    @cached_property
    def _exact(self) -> jieba.Tokenizer:
        """Load jieba itself at first use: it takes a second."""
        import jieba

        exact = jieba.Tokenizer()
        # as initialize() does, but for its cache: no faster, and in the folder of everyone's temporary files
        # another user, or another jieba, may have left it
        exact.FREQ, exact.total = exact.gen_pfdict(exact.get_dict_file())
        exact.initialized = True
        for word, count in self._user_words:
            exact.add_word(word, count)
        return exact

    def _cut_exactly_uncached(self, block: str) -> tuple[str, ...]:
        if block.isascii() and not self._latin_words.search(block):
            return tuple(filter(None, _latin.split(block)))
        return tuple(self._exact.cut(block))

    def split(self, text: str) -> list[str]:
        """Split a text into words that join to the text; a line end is a word by itself.

        >>> Segmenter().split("继续预训练语言模型")
        ['继续', '预', '训练', '语言', '模型']
        """
        ends = np.cumsum(self.lengths(text)).tolist()
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def lengths(self, text: str) -> np.ndarray:
        """Count the characters of each word of a text, in order, [words] int64."""
        lengths: list[int] = []
        begin = 0
        # the last one is empty, at the end of the text
        disputed = [*(match.span() for match in _disputed.finditer(text)), (len(text), len(text))]
        for start, end in disputed:
            lengths += map(len, self._fast.cut(text[begin:start], False))
            lengths += map(len, self._cut_exactly(text[start:end]))
            begin = end
        word_lengths = np.array(lengths, dtype=np.int64)
        at = np.cumsum(word_lengths) - word_lengths
        starts = np.zeros(len(text) + 1, dtype=bool)
        starts[at] = True
        # single characters of the dictionary's cut; blocks that jieba has cut are final
        alone = np.zeros(len(text) + 1, dtype=bool)
        alone[at[word_lengths == 1]] = True
        first, last = np.array(disputed).T
        inside = np.bincount(first, minlength=len(text) + 1) - np.bincount(last, minlength=len(text) + 1)
        alone &= np.cumsum(inside) == 0
        self._join_alone(text, starts, alone)
        starts[-1] = True
        return np.diff(np.flatnonzero(starts))

    def _join_alone(self, text: str, starts: np.ndarray, alone: np.ndarray) -> None:
        """Remove the starts of characters that the Markov model joins to preceding ones."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        alone[:-1] &= (codes >= 0x4E00) & (codes <= 0x9FD5)
        edges = np.flatnonzero(np.diff(alone, prepend=False))
        begins, ends = edges[::2], edges[1::2]
        several = ends - begins > 1
        begins, ends = begins[several], ends[several]
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        # jieba leaves the characters of a dictionary's word apart here
        unknown = ~np.array([self._fast.has_word(text[a:b]) for a, b in spans], dtype=bool)
        begins, lengths = begins[unknown], (ends - begins)[unknown]
        for length in np.unique(lengths).tolist():
            places = begins[lengths == length][:, None] + np.arange(length)
            starts[places] = _begins_word(codes[places])


@cache
def _model() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return jieba's Markov model, log probabilities: first states [4], changes [4, 4], characters [4, V]."""
    from jieba import finalseg

    never = finalseg.MIN_FLOAT
    first = np.array([finalseg.start_P[state] for state in _STATES])
    changes = np.full((4, 4), -np.inf)
    characters = np.full((4, 0x9FD6), never)
    for number, state in enumerate(_STATES):
        for before in _BEFORE[state]:
            changes[_STATES.index(before), number] = finalseg.trans_P[before].get(state, never)
        for character, probability in finalseg.emit_P[state].items():
            if ord(character) < characters.shape[1]:
                characters[number, ord(character)] = probability
    return first, changes, characters


def _begins_word(codes: np.ndarray) -> np.ndarray:
    """Find the characters of strings [N, L] that begin a word by their most probable states, [N, L] bool.

    The Viterbi sums are in jieba's order and ties go to the later state, so the states are jieba's.
    """
    first, changes, characters = _model()
    N, L = codes.shape
    best = first[:, None] + characters[:, codes[:, 0]]  # [4, N]
    came_from = np.empty((L, 4, N), dtype=np.int8)
    for place in range(1, L):
        paths = best[:, None, :] + changes[:, :, None]  # [from, to, N]
        paths += characters[:, codes[:, place]][None]
        came_from[place] = 3 - paths[::-1].argmax(axis=0)
        best = paths.max(axis=0)
    states = np.empty((N, L), dtype=np.int8)
    end, single = _STATES.index("E"), _STATES.index("S")
    states[:, -1] = np.where(best[single] >= best[end], single, end)
    rows = np.arange(N)
    for place in range(L - 1, 0, -1):
        states[:, place - 1] = came_from[place, states[:, place], rows]
    begins = (states == _STATES.index("B")) | (states == single)
    begins[:, 0] = True  # even if the model says it ends a word, having seen it nowhere else
    return begins


def _user_words(paths: Sequence[Path]) -> list[tuple[str, int | None]]:
    words = []
    for path in paths:
        for line in read_lines(path, "user dictionary"):
            parts = _dictionary_line.fullmatch(line)
            if not parts or parts[2] and not int(parts[2]):
                raise InputError(
                    f"{path}: {line!r}: a line is a word, then its count (1 or more), then a tag"
                )
            words.append((parts[1], int(parts[2]) if parts[2] else None))
    return words
