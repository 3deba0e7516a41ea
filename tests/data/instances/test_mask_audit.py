import numpy as np
import pytest

from data.instances import (
    OBJECTIVES,
    MaskRule,
    MaskVocabulary,
    audit_masks,
    audit_ngrams,
    draw_masks,
    sop_balance,
)

VOCABULARY = MaskVocabulary(200, 4, np.array([0, 1, 2, 3, 4]), np.arange(5, 200))


def sequences(count=400, seed=0):
    """Packed sequences of words of 1 to 4 tokens between special ones."""
    rng = np.random.default_rng(seed)
    ids, starts, ends = [], [], [0]
    for _ in range(count):
        lengths = rng.integers(1, 5, rng.integers(8, 40))
        ids += [2, *rng.integers(5, 200, lengths.sum()).tolist(), 3]
        starts += [True, *[i == 0 for n in lengths for i in range(n)], True]
        ends.append(len(ids))
    instance_ids = rng.integers(0, 2**63, count).astype(np.uint64)
    return np.array(ids), np.array(starts), np.array(ends), instance_ids


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_masks_whole_words_of_every_length_alike(objective):
    ids, starts, ends, instance_ids = sequences()
    rule = MaskRule(objective=objective)
    drawn = draw_masks(ids, starts, ends, instance_ids, VOCABULARY, rule, seed=1, epoch=0)
    audit = audit_masks(ids, starts, drawn.positions, VOCABULARY)
    assert audit["whole_word_coverage"] == 1
    assert audit["mask_rate"] == pytest.approx(len(drawn.positions) / (len(ids) - 800))
    assert list(audit["mask_rate_by_word_length"]) == ["1", "2", "3", "4"]
    assert all(0.11 < rate < 0.19 for rate in audit["mask_rate_by_word_length"].values())


def test_the_lengths_of_ngrams_are_near_what_the_rule_draws():
    ids, starts, ends, instance_ids = sequences()
    audit = audit_ngrams(ids, starts, ends, instance_ids, VOCABULARY, MaskRule(rate=0.4), seed=1, epoch=0)
    shares = {
        n: count / sum(audit["ngram_histogram"].values()) for n, count in audit["ngram_histogram"].items()
    }
    assert list(shares) == ["1", "2", "3"]
    for n, expected in audit["ngram_expected_shares"].items():
        assert shares[n] == pytest.approx(expected, abs=0.05)


def test_a_partly_masked_word_is_counted():
    ids, starts = np.array([2, 9, 9, 9, 3]), np.array([True, True, False, True, True])
    audit = audit_masks(ids, starts, np.array([1, 3]), VOCABULARY)
    assert audit["whole_word_coverage"] == 0.5
    assert audit["mask_rate_by_word_length"] == {"1": 1.0, "2": 0.5}


def test_sentence_order_is_counted_by_length():
    balance = sop_balance(np.array([5, 16, 17, 30, 30]), np.array([0, 1, 1, 1, -100]), [16, 32])
    assert balance == [
        {"length_from": 1, "length_to": 16, "in_order": 1, "swapped": 1},
        {"length_from": 17, "length_to": 32, "in_order": 0, "swapped": 2},
    ]
    assert sop_balance(np.array([5]), np.array([-100]), [16]) == []
