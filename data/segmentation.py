"""Chinese words: jieba's, found by its Rust port wherever the two agree.

jieba first cuts a text into blocks (Han characters, letters, digits and a few ASCII signs) and decides on the
words of each block by itself. On blocks of Han characters, letters and digits the port gives the same words
at over ten times the speed. It differs where ASCII signs or rare Han characters stand in a block, and where
a pattern repeats so that several cuts are equally likely; those blocks go to jieba itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import rjieba

from data.records import InputError

# characters either engine takes into a block, with the signs and the rare Han characters they disagree on
_LETTERS = "\u4e00-\u9fd5a-zA-Z0-9"
_SIGNS = "+#&._%\\-"
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# one to three characters three times in a row
_repeats = re.compile(rf"([{_LETTERS}]{{1,3}}?)\1\1")
_signs = re.compile(f"[{_SIGNS}{_RARE}]")
# how jieba cuts what has no Han character in it (its finalseg.re_skip), but for the words of its dictionary
_latin = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
LATIN_WORDS = ("AT&T", "c#", "C#", "c++", "C++")
_block = re.compile(f"[{_LETTERS}{_SIGNS}{_RARE}]+")


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
        words: list[str] = []
        begin = 0
        for start, end in self._disputed_blocks(text):
            if start > begin:
                words += self._fast.cut(text[begin:start])
            words += self._cut_exactly(text[start:end])
            begin = end
        if begin < len(text):
            words += self._fast.cut(text[begin:])
        return words

    @staticmethod
    def _disputed_blocks(text: str) -> list[tuple[int, int]]:
        hits = sorted(
            [m.start() for m in _signs.finditer(text)] + [m.start() for m in _repeats.finditer(text)]
        )
        blocks: list[tuple[int, int]] = []
        for hit in hits:
            if blocks and hit < blocks[-1][1]:
                continue
            begin = hit
            while begin and _block.match(text[begin - 1]):
                begin -= 1
            blocks.append((begin, _block.match(text, hit).end()))
        return blocks


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
            if len(parts) > 3 or (len(parts) > 1 and count is None and not parts[1].isalpha()):
                raise InputError(f"{path} line {number}: a line is a word, then its count, then a tag")
            words.append((parts[0], count))
    return words
