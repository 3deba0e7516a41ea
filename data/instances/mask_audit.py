"""Audit masks: the tokens that they really hide, next to what the rule says.

T = tokens, S = sequences, n = masked positions, W = words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.instances.masking import MaskRule, MaskVocabulary, draw_ngram_lengths
from data.instances.objectives import length_probabilities

_LONGEST = 6  # tokens; longer words count as this long


def audit_masks(
    input_ids: np.ndarray, word_starts: np.ndarray, masked_positions: np.ndarray, vocabulary: MaskVocabulary
) -> dict[str, object]:
    """Measure the share of masked tokens by word length, and the share of hit words masked whole.

    input_ids [T], word_starts [T] bool, masked_positions [n]. Special tokens do not count.
    """
    edges = np.flatnonzero(word_starts)
    lengths = np.diff(edges, append=len(input_ids))
    is_masked = np.zeros(len(input_ids), dtype=np.int64)
    is_masked[masked_positions] = 1
    masked = np.add.reduceat(is_masked, edges)
    is_word = ~np.isin(input_ids[edges], vocabulary.special_ids)
    lengths, masked = lengths[is_word], masked[is_word]
    buckets = np.minimum(lengths, _LONGEST)
    tokens, hidden = np.bincount(buckets, lengths), np.bincount(buckets, masked)
    hit = masked > 0
    return {
        "mask_rate": float(masked.sum() / max(lengths.sum(), 1)),
        "mask_rate_by_word_length": {
            str(length): float(hidden[length] / tokens[length]) for length in np.flatnonzero(tokens).tolist()
        },
        "whole_word_coverage": float((masked[hit] == lengths[hit]).mean()) if hit.any() else 1.0,
    }


def audit_ngrams(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    cu_seqlens: np.ndarray,
    instance_ids: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    seed: int,
    epoch: int,
) -> dict[str, object]:
    """Count how many words were masked together, next to the shares that the rule draws.

    A sequence's budget and the ends of its segments cut groups, so short ones are a little too frequent.
    """
    lengths = draw_ngram_lengths(
        input_ids, word_starts, cu_seqlens, instance_ids, vocabulary, rule, seed=seed, epoch=epoch
    )
    counts = np.bincount(lengths)
    expected = length_probabilities(rule.objective, rule.max_ngram)
    return {
        "ngram_histogram": {str(n): int(counts[n]) for n in np.flatnonzero(counts).tolist()},
        "ngram_expected_shares": {str(n): float(share) for n, share in enumerate(expected, 1)},
    }


def sop_balance(lengths: np.ndarray, sop_labels: np.ndarray, bounds: Sequence[int]) -> list[dict[str, int]]:
    """Count sequences in order and swapped by length; lengths and labels [S], only labels 0 and 1 count.

    `bounds` are the longest lengths of the buckets, ascending.
    """
    buckets, begin = [], 1
    for end in bounds:
        inside = (lengths >= begin) & (lengths <= end)
        in_order, swapped = ((inside & (sop_labels == label)).sum() for label in (0, 1))
        if in_order or swapped:
            buckets.append(
                {"length_from": begin, "length_to": end, "in_order": int(in_order), "swapped": int(swapped)}
            )
        begin = end + 1
    return buckets
