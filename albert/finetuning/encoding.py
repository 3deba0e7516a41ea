"""Examples as token ids, packed batches of them, and what a model says of them.

U = examples, S = sequences (one for each answer of a choice, several for a long passage), T = tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from albert.batching import pack_segments
from albert.model import Batch
from data.instances import take_ranges
from data.tokenization import Tokenizer


class Chosen(NamedTuple):
    """A batch, and the places of its parts in the encoded split."""

    batch: Batch
    examples: np.ndarray  # [u] of 0..U-1
    sequences: np.ndarray  # [s] of 0..S-1
    tokens: np.ndarray  # [t] of 0..T-1
    first: np.ndarray  # [u+1], the first sequence of each example in the batch


class Encoding(NamedTuple):
    """A sequence of an example. Learners document their targets and characters."""

    input_ids: np.ndarray  # [t]
    b_start: int = 0  # where the second part begins; 0: no second part
    is_cut: bool = False  # whether it lost tokens to the maximum length
    targets: np.ndarray | None = None
    characters: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The encoded examples of a split."""

    input_ids: np.ndarray  # [T] int64
    offsets: np.ndarray  # [S+1], the first token of each sequence
    segment_b_start: np.ndarray  # [S], where the second part begins in the sequence; 0: no second part
    first: np.ndarray  # [U+1], the first sequence of each example
    targets: np.ndarray
    characters: np.ndarray | None = None
    cut: int = 0  # sequences that lost tokens to the maximum length

    def describe_cut(self, split: str) -> str:
        """Say how many sequences of the split lost tokens to the maximum length."""
        return (
            f"{self.cut:,} of {len(self.segment_b_start):,} texts of {split} are longer than "
            f"{np.diff(self.offsets).max()} tokens and were cut"
        )

    @classmethod
    def of(cls, examples: Iterable[Sequence[Encoding]], targets: np.ndarray | None = None) -> Encoded:
        """Put the sequences of each example together; `targets` [U] in place of the sequences' own."""
        rows = list(examples)
        ids, b_starts, is_cut, own, characters = zip(*chain.from_iterable(rows), strict=True)
        return cls(
            input_ids=np.concatenate(ids),
            offsets=np.cumsum([0, *map(len, ids)]),
            segment_b_start=np.array(b_starts),
            first=np.cumsum([0, *map(len, rows)]),
            targets=np.concatenate(own) if targets is None else targets,
            characters=None if characters[0] is None else np.concatenate(characters),
            cut=sum(is_cut),
        )

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def sizes(self) -> np.ndarray:
        """The number of tokens of each example, [U]."""
        return np.diff(self.offsets[self.first])

    def choose(self, examples: np.ndarray) -> Chosen:
        """A packed batch of some examples."""
        counts = self.first[examples + 1] - self.first[examples]
        sequences = take_ranges(self.first[examples], counts)
        lengths = self.offsets[sequences + 1] - self.offsets[sequences]
        tokens = take_ranges(self.offsets[sequences], lengths)
        offsets, first = (np.cumulative_sum(sizes, include_initial=True) for sizes in (lengths, counts))
        batch = pack_segments(self.input_ids[tokens], offsets, self.segment_b_start[sequences])
        return Chosen(batch, examples, sequences, tokens, first)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A model's predictions on a split. n = examples, C = labels or choices."""

    answers: tuple[str, ...]  # as text, one for each example
    right: np.ndarray | None  # [n] bool; None if answers are numbers, which are near rather than right
    statistics: Mapping[str, np.ndarray]  # by metric, [n, k]: see `albert.evaluation.metrics`
    probabilities: np.ndarray | None = None  # [n, C]
    tags: tuple[tuple[str, ...], ...] | None = None  # predicted, for every token
    confidence: tuple[np.ndarray, ...] | None = None  # of the prediction: spans [1], tags [tokens]


def encode_texts(
    examples: Iterable[Iterable[Sequence[str]]],
    tokenizer: Tokenizer,
    max_seq_length: int,
    targets: np.ndarray,
) -> Encoded:
    """Encode the sequences of each example: [CLS] A [SEP] of a text, [CLS] A [SEP] B [SEP] of a pair (with
    RoBERTa's tokenizer two between its texts), whose longer one is cut to fit.
    """
    ids_of = lru_cache(maxsize=64)(lambda text: tokenizer.encode(text)[0])  # choices share their passage
    cls, sep = np.array([tokenizer.cls_id]), np.array([tokenizer.sep_id])

    def sequence(text: str, pair: str | None = None) -> Encoding:
        a, b = ids_of(text), np.array([], np.int64) if pair is None else ids_of(pair)
        between = 0 if pair is None else tokenizer.separators
        room_a, room_b = fit_pair(len(a), len(b), max_seq_length - 2 - between)
        ids = np.concatenate([cls, a[:room_a], *[sep] * between, b[:room_b], sep])
        b_start = 0 if pair is None else room_a + 1 + between
        return Encoding(ids, b_start, is_cut=room_a + room_b < len(a) + len(b))

    return Encoded.of([[sequence(*texts) for texts in rows] for rows in examples], targets)


def fit_pair(a: int, b: int, room: int) -> tuple[int, int]:
    """Cut two lengths to fit `room` together: tokens come off the longer one, off the first of equal ones.

    >>> fit_pair(9, 3, 8), fit_pair(9, 9, 9), fit_pair(2, 3, 9)
    ((5, 3), (4, 5), (2, 3))
    """
    if a + b > room:
        a = min(a, max(room - b, room // 2))
        b = room - a
    return a, b
