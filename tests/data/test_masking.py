"""Invariants of masks on real instances."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.instances import build_instances, tokenize_document
from data.masking import MaskRule, draw_masks
from data.records import document_id
from data.segmentation import split_words
from data.sentences import split_sentences
from data.shards import mask_vocabulary
from tests.conftest import sample_texts


@pytest.fixture(scope="module")
def instances(tokenizer):
    made = []
    for text in sample_texts():
        words = [split_words(sentence) for sentence in split_sentences(text)]
        document = tokenize_document(document_id(text), words, tokenizer, 125)
        made += build_instances(document, tokenizer, max_seq_length=128, sop=True)
    return made


def pack(instances):
    lengths = [len(i.input_ids) for i in instances]
    return (
        np.concatenate([i.input_ids for i in instances]),
        np.concatenate([i.word_starts for i in instances]),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.array([i.instance_id for i in instances], dtype=np.uint64),
    )


RULE = MaskRule()


def draw(instances, tokenizer, rule=RULE, seed=0, epoch=0):
    return draw_masks(*pack(instances), mask_vocabulary(tokenizer), rule, seed=seed, epoch=epoch)


def words_of(instance, tokenizer):
    """Token ranges of the maskable words of an instance."""
    special = np.isin(instance.input_ids, mask_vocabulary(tokenizer).special_ids)
    edges = [*np.flatnonzero(instance.word_starts | special), len(special)]
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if not special[a]]


@given(seed=st.integers(0, 2**31), epoch=st.integers(0, 2**32 - 1))
def test_masks_keep_their_invariants(instances, tokenizer, seed, epoch):
    chosen = instances[seed % 7 :: 7]
    masks = draw(chosen, tokenizer, seed=seed, epoch=epoch)
    input_ids, _, cu_seqlens, _ = pack(chosen)
    assert (np.diff(masks.positions) > 0).all()
    assert (masks.labels == input_ids[masks.positions]).all()  # unmasked ids round-trip
    assert not np.isin(masks.labels, mask_vocabulary(tokenizer).special_ids).any()
    masked = np.zeros(len(input_ids), dtype=bool)
    masked[masks.positions] = True
    for number, instance in enumerate(chosen):
        here = masked[cu_seqlens[number] : cu_seqlens[number + 1]]
        words = words_of(instance, tokenizer)
        taken = [(a, b) for a, b in words if here[a]]
        assert all(here[a:b].all() for a, b in taken) and here.sum() == sum(b - a for a, b in taken)
        tokens, longest = sum(b - a for a, b in words), max(b - a for a, b in words)
        assert abs(here.sum() - 0.15 * tokens) <= longest + 0.5


def test_replacements_are_eighty_ten_ten(instances, tokenizer):
    drawn = [draw(instances, tokenizer, epoch=epoch) for epoch in range(20)]
    labels = np.concatenate([m.labels for m in drawn])
    now = np.concatenate([m.replacements for m in drawn])
    n = len(labels)
    # three standard deviations of a binomial share
    for share, expected in ((now == tokenizer.mask_id).mean(), 0.8), ((now == labels).mean(), 0.1):
        assert abs(share - expected) < 3 * (expected * (1 - expected) / n) ** 0.5 + 1e-3
    random = now[(now != tokenizer.mask_id) & (now != labels)]
    assert np.isin(random, tokenizer.replacement_ids()).all()


def test_mean_share_is_fifteen_percent(instances, tokenizer):
    tokens = sum(b - a for i in instances for a, b in words_of(i, tokenizer))
    shares = [len(draw(instances, tokenizer, epoch=epoch).positions) / tokens for epoch in range(10)]
    assert 0.135 < np.mean(shares) <= 0.152


def test_a_draw_depends_on_nothing_but_seed_epoch_and_instance(instances, tokenizer):
    together = draw(instances, tokenizer, epoch=3)
    cu_seqlens = pack(instances)[2]
    for number in (0, 5, len(instances) - 1):
        alone = draw([instances[number]], tokenizer, epoch=3)
        inside = (together.positions >= cu_seqlens[number]) & (together.positions < cu_seqlens[number + 1])
        assert (together.positions[inside] - cu_seqlens[number]).tolist() == alone.positions.tolist()
        assert together.replacements[inside].tolist() == alone.replacements.tolist()
    assert draw(instances, tokenizer, epoch=4).positions.tolist() != together.positions.tolist()
    assert draw(instances, tokenizer, seed=1, epoch=3).positions.tolist() != together.positions.tolist()


def test_ngrams_are_six_to_three_to_two(tokenizer):
    # one long stretch of one-token words, few of them masked, so that n-grams rarely touch
    length = 4000
    ids = np.full(length, tokenizer.replacement_ids()[0])
    runs = Counter()
    for epoch in range(60):
        masks = draw_masks(
            ids, np.ones(length, bool), np.array([0, length]), np.array([7], np.uint64),
            mask_vocabulary(tokenizer), MaskRule(rate=0.01), seed=0, epoch=epoch,
        )  # fmt: skip
        breaks = np.flatnonzero(np.diff(masks.positions) != 1)
        runs.update(np.diff([-1, *breaks, len(masks.positions) - 1]).tolist())
    total = sum(runs.values())
    for n, expected in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        assert abs(runs[n] / total - expected) < 0.04


def test_at_most_max_predictions(instances, tokenizer):
    masks = draw(instances, tokenizer, MaskRule(max_predictions=4, max_ngram=1))
    longest = max(b - a for i in instances for a, b in words_of(i, tokenizer))
    counts = np.bincount(np.searchsorted(pack(instances)[2], masks.positions, side="right") - 1)
    assert counts.max() <= max(4, longest)
