from dataclasses import replace

import numpy as np
import pytest

from data.instances import (
    LengthAudit,
    MaskAudit,
    MaskRule,
    MaskVocabulary,
    SimilarWords,
    audit_lengths,
    audit_masks,
    audit_ngrams,
    draw_masks,
    word_keys,
)

VOCABULARY = MaskVocabulary(200, 4, np.array([0, 1, 2, 3, 4]), np.arange(5, 200))


def test_the_lengths_of_ngrams_are_near_what_the_rule_draws():
    rng, rule = np.random.default_rng(0), MaskRule(rate=0.4)
    ids, starts = rng.integers(5, 200, (40, 500)), rng.random((40, 500)) < 0.4
    ids[:, [0, -1]], starts[:, [0, 1, -1]] = (2, 3), True  # sequences between special tokens
    packed = ids.ravel(), starts.ravel(), np.arange(0, ids.size + 1, 500), np.arange(40, dtype=np.uint64)
    masks = draw_masks(*packed, VOCABULARY, rule, seed=1, epoch=0)
    audit = audit_ngrams(packed[1], masks, rule)
    total = sum(audit.counts.values())
    assert list(audit.counts) == ["1", "2", "3"]
    for n, expected in audit.expected_shares.items():
        assert audit.counts[n] / total == pytest.approx(expected, abs=0.05)


def test_words_partly_masked_or_similar_and_sentence_order_by_length_are_counted():
    ids, starts = np.array([2, *range(9, 21), 3]), np.ones(14, bool)
    starts[[2, 5, 6, 7, 8, 9, 10]] = False  # words of 2, 1, 7, 1 and 1 tokens
    audit = audit_masks(ids, starts, np.array([1, 3, 4]), VOCABULARY)
    assert (audit.rate, audit.whole_words) == (3 / 12, 1 / 3)
    assert audit.by_word_length == {"1": 1 / 3, "2": 0.5, "6": 1 / 7}
    assert audit.similar_words is None
    similar = SimilarWords(word_keys(ids, np.array([1]), np.array([2])), np.array([0, 2]), np.array([5, 6]))
    vocabulary = replace(VOCABULARY, similar=similar)
    audit = audit_masks(ids, starts, np.array([1, 2, 3]), vocabulary)
    assert (audit.whole_words, audit.similar_words) == (1, 0.5)
    audit = audit_masks(ids[:1], starts[:1], ids[:0], vocabulary)
    assert audit == MaskAudit(0, {}, 1, None)
    # the last one is a special token alone
    ends, labels = np.array([0, 5, 7, 19, 20]), np.array([0, -100, 1, 1])
    ids = np.full(20, 9)
    ids[ends[:-1]] = 2
    found = list(audit_lengths(ids, ends, labels, np.array([1, 2, 8]), VOCABULARY, [5, 10, 11, 16]))
    assert found == [LengthAudit(1, 5, 1, 1, 1, 2 / 5), LengthAudit(12, 16, 0, 1, 0, 1 / 11)]
