"""Audit masks: the tokens that they really hide, next to what the rule says.

T = tokens, S = sequences, n = masked positions, W = words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data.instances.masking import MaskRule, Masks, MaskVocabulary, word_keys
from data.instances.objectives import length_probabilities

_LONGEST = 6  # tokens; longer words count as this long


@dataclass(frozen=True, slots=True)
class MaskAudit:
    """What masks hide. Special tokens do not count."""

    rate: float  # share of the tokens
    by_word_length: Mapping[str, float]  # the same by the tokens of the word
    whole_words: float  # share of the masked words that are masked whole
    similar_words: float | None  # share of the masked words that have a similar word, where they need one


@dataclass(frozen=True, slots=True)
class NgramAudit:
    """How many words were masked together, next to the shares that the rule draws."""

    counts: Mapping[str, int]  # by words
    expected_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LengthAudit:
    """The sequences of a range of lengths in tokens."""

    low: int
    high: int
    in_order: int
    swapped: int
    unordered: int  # without a label of order
    mask_rate: float  # share of the tokens that are not special


def audit_masks(
    input_ids: np.ndarray, word_starts: np.ndarray, masked_positions: np.ndarray, vocabulary: MaskVocabulary
) -> MaskAudit:
    """Measure the masks of input_ids [T] and word_starts [T] bool; masked_positions [n]."""
    edges = np.flatnonzero(word_starts)
    lengths = np.diff(edges, append=len(input_ids))
    is_masked = np.zeros(len(input_ids), dtype=np.int64)
    is_masked[masked_positions] = 1
    masked = np.add.reduceat(is_masked, edges)
    is_word = ~np.isin(input_ids[edges], vocabulary.special_ids)
    edges, lengths, masked = edges[is_word], lengths[is_word], masked[is_word]
    buckets = np.minimum(lengths, _LONGEST)
    tokens, hidden = np.bincount(buckets, lengths), np.bincount(buckets, masked)
    hit, similar = masked > 0, vocabulary.similar
    keys = word_keys(input_ids, edges[hit], lengths[hit])
    return MaskAudit(
        rate=float(masked.sum() / max(lengths.sum(), 1)),
        by_word_length={
            str(length): float(hidden[length] / tokens[length]) for length in np.flatnonzero(tokens).tolist()
        },
        whole_words=float((masked[hit] == lengths[hit]).mean()) if hit.any() else 1.0,
        similar_words=float(np.isin(keys, similar.keys).mean()) if similar and len(keys) else None,
    )


def audit_ngrams(word_starts: np.ndarray, masks: Masks, rule: MaskRule) -> NgramAudit:
    """Count how many words were masked together; word_starts [T] bool, masks as they were drawn.

    A sequence's budget and the ends of its segments cut groups, so short ones are too frequent: of
    spanbert's at 128 tokens, 32% instead of 22% have one word.
    """
    group = np.repeat(np.arange(len(masks.groups)), masks.groups)
    counts = np.bincount(np.bincount(group[word_starts[masks.positions]]))
    expected = length_probabilities(rule.objective, rule.max_ngram)
    return NgramAudit(
        {str(n): int(counts[n]) for n in np.flatnonzero(counts).tolist()},
        {str(n): float(share) for n, share in enumerate(expected, 1)},
    )


def audit_lengths(
    input_ids: np.ndarray,
    cu_seqlens: np.ndarray,
    sop_labels: np.ndarray,
    masked_positions: np.ndarray,
    vocabulary: MaskVocabulary,
    bounds: Sequence[int],
) -> Iterator[LengthAudit]:
    """Measure sequences of input_ids [T] by length: their sop_labels [S], and their masks.

    `bounds` are the longest lengths of the buckets, ascending.
    """
    lengths, S = np.diff(cu_seqlens), len(sop_labels)
    sequence = np.repeat(np.arange(S), lengths)
    tokens = np.bincount(sequence[~np.isin(input_ids, vocabulary.special_ids)], minlength=S)
    masked = np.bincount(sequence[masked_positions], minlength=S)
    for low, high in zip([1, *(bound + 1 for bound in bounds)], bounds, strict=False):
        inside = (lengths >= low) & (lengths <= high)
        in_order, swapped = (int((inside & (sop_labels == label)).sum()) for label in (0, 1))
        if count := int(inside.sum()):
            rate = float(masked[inside].sum() / max(tokens[inside].sum(), 1))
            yield LengthAudit(low, high, in_order, swapped, count - in_order - swapped, rate)
