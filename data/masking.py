"""Which tokens are masked and what stands in their place: whole words and n-grams of them, a batch at a time.

Devlin et al. 2019, section 3.1 (15%, 80/10/10); Cui et al. 2019 (whole words for Chinese); Lan et al. 2020,
section 4.1 (n-grams of 1 to 3 words, p(n) proportional to 1/n). A label is the plain token id.

A draw is a pure function of (seed, epoch, instance_id) by a counter-based hash, so it does not depend on how
instances are batched, on workers, or on what was drawn before. T = tokens of the packed batch, S = sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, kw_only=True)
class MaskRule:
    """How many tokens are masked, and in what units."""

    rate: float = 0.15  # of the tokens that are not special
    max_ngram: int = 3  # words masked together; 1 is plain whole-word masking
    max_predictions: int | None = None  # at most so many tokens of one sequence


class MaskVocabulary(NamedTuple):
    """What masking has to know of a vocabulary."""

    mask_id: int
    special_ids: np.ndarray  # never masked
    replacement_ids: np.ndarray  # what a random replacement is drawn from


class Masks(NamedTuple):
    positions: np.ndarray  # [n] int64, in 0..T-1, ascending
    labels: np.ndarray  # [n], the ids that stood there
    replacements: np.ndarray  # [n], the ids that stand there now


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """Steele et al. 2014, splitmix64's finaliser: 64 well-mixed bits from each 64-bit counter."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniform(keys: np.ndarray, counters: np.ndarray, stream: int) -> np.ndarray:
    """Numbers in [0, 1), one for each (key, counter, stream)."""
    bits = _mix(keys + (counters.astype(np.uint64) * np.uint64(8) + np.uint64(stream)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def ngram_probabilities(max_ngram: int) -> np.ndarray:
    """p(n) for n = 1..max_ngram, proportional to 1/n (Lan et al. 2020, section 4.1).

    >>> ngram_probabilities(3).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    weights = 1.0 / np.arange(1, max_ngram + 1)
    return weights / weights.sum()


def draw_masks(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    cu_seqlens: np.ndarray,
    instance_ids: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    seed: int,
    epoch: int,
) -> Masks:
    """Masks of a packed batch.

    input_ids [T]; word_starts [T] bool, whether a word starts at the token; cu_seqlens [S+1]; instance_ids
    [S] uint64. Words are taken in random order, n of them in a row at a time, never across a special token,
    until the next would pass the budget of `rule.rate` of the sequence's tokens; a sequence with any token
    gets one word.
    """
    keys = _mix(instance_ids.astype(np.uint64) ^ _mix(np.uint64([seed]) * _GOLDEN + np.uint64(epoch)))  # [S]
    special = np.isin(input_ids, vocabulary.special_ids)
    edges = np.flatnonzero(word_starts | special)
    lengths = np.diff(edges, append=len(input_ids))
    is_word = ~special[edges]
    words, lengths = edges[is_word], lengths[is_word]  # first token and length of each word
    if not len(words):
        nothing = np.empty(0, dtype=np.int64)
        return Masks(nothing, input_ids[nothing], input_ids[nothing])
    sequence = np.searchsorted(cu_seqlens, words, side="right") - 1
    counter = words - cu_seqlens[sequence]

    # cut each stretch between special tokens into n-grams: the k-th draw of a stretch is the length of its
    # k-th one
    stretch = np.cumsum(special)[words]
    first_of_stretch = np.flatnonzero(np.diff(stretch, prepend=-1))
    stretch_of_word = np.repeat(
        np.arange(len(first_of_stretch)), np.diff(first_of_stretch, append=len(words))
    )
    cumulative = np.cumsum(ngram_probabilities(rule.max_ngram))
    drawn = 1 + np.searchsorted(cumulative[:-1], _uniform(keys[sequence], counter, 0), side="right")
    before = np.cumsum(drawn) - drawn
    ngram_start = before - before[first_of_stretch][stretch_of_word] + first_of_stretch[stretch_of_word]
    ends_stretch = np.append(first_of_stretch[1:], len(words))[stretch_of_word]
    starts_ngram = np.zeros(len(words), dtype=bool)
    starts_ngram[ngram_start[ngram_start < ends_stretch]] = True
    ngram = np.cumsum(starts_ngram) - 1  # of each word

    # take n-grams in random order, word by word, as far as the budget goes
    starting_words = np.flatnonzero(starts_ngram)
    key_of_ngram = _uniform(keys[sequence[starting_words]], counter[starting_words], 1)
    order = np.lexsort((np.arange(len(words)), key_of_ngram[ngram], sequence))
    taken = np.cumsum(lengths[order])
    first_of_sequence = np.flatnonzero(np.diff(sequence[order], prepend=-1))
    sequence_in_order = np.repeat(
        np.arange(len(first_of_sequence)), np.diff(first_of_sequence, append=len(words))
    )
    taken -= (taken[first_of_sequence] - lengths[order[first_of_sequence]])[sequence_in_order]
    tokens = np.add.reduceat(lengths[order], first_of_sequence)
    budget = np.maximum(np.rint(tokens * rule.rate), 1)
    if rule.max_predictions is not None:
        budget = np.minimum(budget, rule.max_predictions)
    chosen = taken <= budget[sequence_in_order]
    chosen[first_of_sequence] = True  # a first word longer than the budget is masked all the same
    masked_words = order[chosen]

    is_masked = np.zeros(len(input_ids) + 1, dtype=np.int8)
    np.add.at(is_masked, words[masked_words], 1)
    np.add.at(is_masked, words[masked_words] + lengths[masked_words], -1)
    positions = np.flatnonzero(np.cumsum(is_masked[:-1]))
    sequence = np.searchsorted(cu_seqlens, positions, side="right") - 1
    counter = positions - cu_seqlens[sequence]
    labels = input_ids[positions]
    kind = _uniform(keys[sequence], counter, 2)
    choice = _uniform(keys[sequence], counter, 3) * len(vocabulary.replacement_ids)
    replacements = np.where(
        kind < 0.8,
        vocabulary.mask_id,
        np.where(kind < 0.9, vocabulary.replacement_ids[choice.astype(np.int64)], labels),
    )
    return Masks(positions, labels, replacements.astype(input_ids.dtype))
