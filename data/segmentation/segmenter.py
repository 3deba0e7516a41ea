"""Chinese words: jieba's, found by its Rust port wherever the two agree.

jieba cuts a text into blocks (Han characters, letters, digits and a few ASCII signs), finds the most probable
way of cutting each into words of its dictionary, and lets a hidden Markov model join the characters that are
left alone. The port does the second at ten times the speed. It differs where other characters stand
beside Han ones, and where a pattern repeats so that several cuts are equally likely: those blocks go to jieba
itself. Its Markov model is less precise, so jieba's own is computed here, in the same order of
operations, for all characters left alone at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import rjieba

from data.errors import InputError

_LETTERS = "a-zA-Z0-9"
_SIGNS = "+#&._%\\-"
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN = "\u4e00-\u9fd5"
# what the port may cut otherwise: signs, rare characters, and letters beside Han characters
_mixed = re.compile(f"[{_SIGNS}{_RARE}]|[{_HAN}][{_LETTERS}]|[{_LETTERS}][{_HAN}]")
# one to three characters three times in a row
_repeats = re.compile(rf"([{_HAN}]{{1,3}}?)\1\1")
_block = re.compile(f"[{_HAN}{_LETTERS}{_SIGNS}{_RARE}]+")
# how jieba cuts what has no Han character in it (its finalseg.re_skip), but for the words of its dictionary
_latin = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
LATIN_WORDS = ("AT&T", "c#", "C#", "c++", "C++")

_STATES = "BEMS"  # a character begins, ends, is inside, or is a word; in jieba's order of preference
_BEFORE = {"B": "ES", "E": "BM", "M": "BM", "S": "ES"}


class Segmenter:
    """Words by jieba's dictionary and those of the user's files (jieba's format: word [count] [tag] a line).

    Raises InputError for a user dictionary that cannot be read.
    """

    def __init__(self, dictionaries: Sequence[Path] = ()):
        self._dictionaries = tuple(dictionaries)
        self._fast = rjieba.Jieba()
        self._exact = None
        latin = {*LATIN_WORDS}
        for word, count in _user_words(self._dictionaries):
            if count is None:
                count = self._jieba().FREQ[word]
            self._fast.add_word(word, count, None)
            if word.isascii():
                latin.add(word)
        self._latin_words = re.compile("|".join(map(re.escape, sorted(latin))))
        self._cut_exactly = lru_cache(maxsize=1 << 16)(self._cut_exactly_uncached)

    def _jieba(self):
        """jieba itself, loaded when it is first needed: it takes a second."""
        if self._exact is None:
            import jieba

            jieba.setLogLevel(logging.WARNING)
            self._exact = jieba.Tokenizer()
            self._exact.initialize()
            for path in self._dictionaries:
                self._exact.load_userdict(str(path))
        return self._exact

    def _cut_exactly_uncached(self, block: str) -> tuple[str, ...]:
        if block.isascii() and not self._latin_words.search(block):
            return tuple(filter(None, _latin.split(block)))
        return tuple(self._jieba().cut(block))

    def split(self, text: str) -> list[str]:
        """Words of a text in order; joined they are the text. A line end is a word of its own.

        >>> Segmenter().split("继续预训练语言模型")
        ['继续', '预', '训练', '语言', '模型']
        """
        ends = np.cumsum(self.lengths(text)).tolist()
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def lengths(self, text: str) -> np.ndarray:
        """Characters of each word of a text, in order, [words] int64."""
        lengths: list[int] = []
        begin = 0
        disputed = self._disputed_blocks(text)
        for start, end in disputed:
            if start > begin:
                lengths += map(len, self._fast.cut(text[begin:start], False))
            lengths += map(len, self._cut_exactly(text[start:end]))
            begin = end
        if begin < len(text):
            lengths += map(len, self._fast.cut(text[begin:], False))
        of_words = np.array(lengths, dtype=np.int64)
        at = np.cumsum(of_words) - of_words
        starts = np.zeros(len(text) + 1, dtype=bool)
        starts[at] = True
        # characters the dictionary left alone; what jieba itself has cut is as it should be
        alone = np.zeros(len(text) + 1, dtype=bool)
        alone[at[of_words == 1]] = True
        if disputed:
            first, last = np.array(disputed).T
            inside = np.bincount(first, minlength=len(text) + 1) - np.bincount(last, minlength=len(text) + 1)
            alone &= np.cumsum(inside) == 0
        self._join_alone(text, starts, alone)
        starts[-1] = True
        return np.diff(np.flatnonzero(starts))

    def _join_alone(self, text: str, starts: np.ndarray, alone: np.ndarray) -> None:
        """Take out the starts of characters that the Markov model joins to those before them."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        alone[:-1] &= (codes >= 0x4E00) & (codes <= 0x9FD5)
        edges = np.flatnonzero(np.diff(alone, prepend=False))
        begins, ends = edges[::2], edges[1::2]
        several = ends - begins > 1
        begins, ends = begins[several], ends[several]
        known = [self._fast.has_word(text[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        unknown = ~np.array(known, dtype=bool)  # jieba leaves a word of its dictionary apart here
        begins, lengths = begins[unknown], (ends - begins)[unknown]
        for length in np.unique(lengths).tolist():
            places = begins[lengths == length][:, None] + np.arange(length)
            starts[places] = _begins_word(codes[places])

    @staticmethod
    def _disputed_blocks(text: str) -> list[tuple[int, int]]:
        hits = [m.start() for pattern in (_mixed, _repeats) for m in pattern.finditer(text)]
        blocks: list[tuple[int, int]] = []
        for hit in sorted(hits):
            if blocks and hit < blocks[-1][1]:
                continue
            begin = hit
            while begin and _block.match(text[begin - 1]):
                begin -= 1
            blocks.append((begin, _block.match(text, hit).end()))
        return blocks


@cache
def _model() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """jieba's Markov model, log probabilities: first states [4], changes [4, 4], characters [4, V]."""
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
    """Which characters of strings [N, L] begin a word: the most probable states (Viterbi), [N, L] bool.

    Sums are made in jieba's order and ties go to the later state, so that the states are jieba's.
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
    begins[:, 0] = True  # also where the model has it end a word: one it has seen nowhere else
    return begins


def _user_words(paths: Sequence[Path]) -> list[tuple[str, int | None]]:
    words = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"user dictionary {path} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            parts = line.split()
            if not parts:
                continue
            count = next((int(part) for part in parts[1:] if part.isdecimal()), None)
            if len(parts) > 3 or count == 0 or (len(parts) > 1 and count is None and not parts[1].isalpha()):
                raise InputError(
                    f"{path} line {number}: a line is a word, then its count (1 or more), then a tag"
                )
            words.append((parts[0], count))
    return words
