"""What masks really hide, against what the rule says: a check that anybody can read.

T = tokens, S = sequences, n = masked positions, W = words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.instances.masking import MaskRule, MaskVocabulary, draw_ngram_lengths
from data.instances.objectives import length_probabilities

_LONGEST = 6  # longer words count as such


def audit_masks(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    masked_positions: np.ndarray,
    vocabulary: MaskVocabulary,
) -> dict[str, object]:
    """Share of the tokens masked by the length of their word, and of the words hit those masked whole.

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
    """How many words were masked together, and the shares the rule draws lengths with.

    Groups are cut by a sequence's budget and by the ends of its sentences' segments, so that short ones are
    a little more frequent than drawn.
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
    """Sequences in order and swapped by length, both [S]; labels other than 0 and 1 do not count.

    `bounds` are the longest lengths of the buckets, ascending.
    """
    found, begin = [], 1
    for end in bounds:
        inside = (lengths >= begin) & (lengths <= end)
        in_order, swapped = ((inside & (sop_labels == label)).sum() for label in (0, 1))
        if in_order or swapped:
            found.append(
                {"length_from": begin, "length_to": end, "in_order": int(in_order), "swapped": int(swapped)}
            )
        begin = end + 1
    return found
