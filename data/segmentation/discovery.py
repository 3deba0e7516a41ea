"""Discover new words of a field: strings of Han characters that are cohesive and occur in free contexts.

Cohesion is the least pointwise mutual information over a string's cuts (Church and Hanks 1990), freedom the
entropy of the characters before and after it (branching entropy; Jin and Tanaka-Ishii 2006). Words that jieba
already finds are left out, and phrases: strings in which it finds one of a few function words.

    jixu corpus words --corpus law --output words.txt      # then: --dictionary words.txt
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from data.files import write_text
from data.segmentation.segmenter import Segmenter

MAX_CHARACTERS = 20_000_000  # at about 80 bytes of memory each; a larger corpus is sampled
LONGEST = 6  # characters of a word
MIN_COUNT = 10
MIN_COHESION = 3.0  # bits
MIN_FREEDOM = 1.2  # bits, on both sides
_log = logging.getLogger(__name__)
_CONTEXT = 12  # characters to each side of an example
# characters that begin or end phrases, hardly words
_LOOSE = frozenset(
    "的了是在和与及或等对为以于之其该本不有被将由从到把让给向也都就还又而但并应可当按经所者下各每"
    "某个些这那此何如若则即乃且因故虽"
)
_LOOSE_FIRST = _LOOSE | frozenset("第次号倍日起条款项元万")
_LOOSE_LAST = _LOOSE | frozenset("内中时前后间上起")
# words that part a phrase from a word: 性价比很高 and 单位和个人 are no words, however often they occur
_OF_PHRASES = frozenset(
    ["的", "了", "和", "与", "及", "或", "或者", "很", "太", "非常", "比较", "我", "你", "您"]
)
_BOUNDARY = 0  # number of every character that is not Han


@dataclass(frozen=True, slots=True)
class Word:
    """A new word."""

    word: str
    count: int
    cohesion: float  # bits
    left_entropy: float  # bits
    right_entropy: float
    score: float
    example: str


class _CountedText:
    """A text as numbers, with the strings of up to `longest` Han characters that occur `min_count` times."""

    def __init__(self, text: str, longest: int, min_count: int):
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_han = (codes >= 0x4E00) & (codes <= 0x9FFF)
        alphabet, numbers = np.unique(codes[is_han], return_inverse=True)
        self.text = text
        self.alphabet = len(alphabet) + 1
        # a boundary before and after, so that every place has neighbours
        self.ids = np.zeros(len(codes) + 2, dtype=np.int64)
        self.ids[1:-1][is_han] = numbers + 1
        self.labels: list[np.ndarray] = []  # by length - 1: [n] int32, string that begins here, or -1
        self.counts: list[np.ndarray] = []
        places = np.flatnonzero(self.ids)
        keys = self.ids[places]
        for length in range(1, longest + 1):
            if length > 1:
                shorter = self.labels[-1]
                # a frequent string begins and ends with a frequent shorter one
                places = np.flatnonzero((shorter[:-1] >= 0) & (shorter[1:] >= 0))
                keys = shorter[places].astype(np.int64) * self.alphabet + self.ids[places + length - 1]
            _, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
            renumbered = np.full(len(counts), -1, dtype=np.int32)
            frequent = np.flatnonzero(counts >= min_count)
            renumbered[frequent] = np.arange(len(frequent))
            labels = np.full(len(self.ids), -1, dtype=np.int32)
            labels[places] = renumbered[numbers]
            self.labels.append(labels)
            self.counts.append(counts[frequent])

    def entropies(self, length: int, offset: int) -> np.ndarray:
        """Compute the entropy in bits of the characters at `offset` from the start of each string."""
        labels = self.labels[length - 1]
        places = np.flatnonzero(labels >= 0)
        neighbours = self.ids[places + offset]
        # a boundary is a free context: a word before a comma is as free as any
        keys = labels[places].astype(np.int64) * self.alphabet + neighbours
        pairs, counts = np.unique(keys, return_counts=True)
        strings, is_boundary = pairs // self.alphabet, pairs % self.alphabet == _BOUNDARY
        total = self.counts[length - 1]
        share = counts / total[strings]
        bits = -share * np.log2(share)
        # n boundaries count as n different neighbours
        bits[is_boundary] = share[is_boundary] * np.log2(total[strings[is_boundary]])
        return np.bincount(strings, bits)

    def cohesions(self, length: int, at: np.ndarray) -> np.ndarray:
        """Compute the least mutual information in bits over the cuts of the strings that begin at `at`."""
        total = np.log2(max((self.ids > 0).sum(), 1))
        whole = np.log2(self.counts[length - 1][self.labels[length - 1][at]])
        least = np.full(len(at), np.inf)
        for cut in range(1, length):
            left = self.counts[cut - 1][self.labels[cut - 1][at]]
            right = self.counts[length - cut - 1][self.labels[length - cut - 1][at + cut]]
            least = np.minimum(least, whole + total - np.log2(left) - np.log2(right))
        return least


def discover_words(
    texts: Iterable[str],
    *,
    segmenter: Segmenter | None = None,
    min_count: int = MIN_COUNT,
    min_cohesion: float = MIN_COHESION,
    min_freedom: float = MIN_FREEDOM,
    limit: int = 1000,
) -> list[Word]:
    """Find the best `limit` new words of some texts, best first; deterministic.

    Texts of more than MAX_CHARACTERS are sampled evenly, with a warning in the log.
    """
    text = _CountedText(_joined(texts), LONGEST, min_count)
    candidates: list[Word] = []
    for length in range(2, LONGEST + 1):
        labels = text.labels[length - 1]
        _, at = np.unique(labels[labels >= 0], return_index=True)
        at = np.flatnonzero(labels >= 0)[at]
        cohesion = text.cohesions(length, at)
        left, right = text.entropies(length, -1), text.entropies(length, length)
        freedom = np.minimum(left, right)
        counts = text.counts[length - 1]
        score = cohesion * freedom * np.log2(counts)
        chosen = (cohesion >= min_cohesion) & (freedom >= min_freedom)
        measures = [one[chosen].tolist() for one in (at - 1, counts, cohesion, left, right, score)]
        for place, count, bits, before, after, total in zip(*measures, strict=True):
            word = text.text[place : place + length]
            if word[0] not in _LOOSE_FIRST and word[-1] not in _LOOSE_LAST:
                context = text.text[max(place - _CONTEXT, 0) : place + length + _CONTEXT]
                context = " ".join(context.split())
                candidates.append(Word(word, count, bits, before, after, total, context))
    candidates.sort(key=lambda word: (-word.score, word.word))
    return _new_words(candidates, segmenter or Segmenter(), limit)


def _joined(texts: Iterable[str]) -> str:
    """Join the texts; if they are too long, every second, fourth, .. text, from all parts of a corpus."""
    sample: list[str] = []
    size = characters = 0
    step = 1
    for number, text in enumerate(texts):
        characters += len(text)
        if number % step:
            continue
        sample.append(text)
        size += len(text)
        while size > MAX_CHARACTERS and len(sample) > 1:
            sample = sample[::2]
            size = sum(map(len, sample))
            step *= 2
    if step > 1:
        _log.warning(
            "new words are sought in one text of %d, %s of %s characters: counts are of those",
            *(step, f"{size:,}", f"{characters:,}"),
        )
    return "\n".join(sample)


def _new_words(words: Sequence[Word], segmenter: Segmenter, limit: int) -> list[Word]:
    """Select words that the segmenter cuts, that are no phrase and not only a piece of a better one."""
    selected: list[Word] = []
    for word in words:
        if len(selected) >= limit:
            break
        parts = segmenter.split(word.word)
        if len(parts) == 1 or not _OF_PHRASES.isdisjoint(parts):
            continue
        if any(word.word in better.word and word.count < 1.5 * better.count for better in selected):
            continue
        selected.append(word)
    return selected


def write_dictionary(words: Sequence[Word], path: Path) -> Path:
    """Write a user dictionary for jieba; return the path of a table of counts and examples beside it."""
    write_text(path, "".join(f"{word.word}\n" for word in words))
    table = [[one.name for one in fields(Word)]]
    for word in words:
        table.append([f"{one:.2f}" if isinstance(one, float) else str(one) for one in astuple(word)])
    beside = path.with_suffix(".counts.tsv" if path.suffix == ".tsv" else ".tsv")
    write_text(beside, "".join("\t".join(row) + "\n" for row in table))
    return beside
