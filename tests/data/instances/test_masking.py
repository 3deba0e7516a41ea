import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from data.hashing import mix, random_bits, salt
from data.instances import (
    OBJECTIVES,
    MaskRule,
    SimilarWords,
    build_instances,
    draw_masks,
    instance_table,
    mask_vocabulary,
    word_keys,
)
from data.instances.masking import last_word_draw
from data.instances.objectives import length_probabilities
from data.sources import document_id
from tests.conftest import sample_texts
from tests.data.helpers import tokenize_texts


@pytest.fixture(scope="module")
def instances(tokenizer):
    documents = tokenize_texts(sample_texts(), tokenizer, 125)
    ids = list(map(document_id, sample_texts()))
    return build_instances(documents, ids, tokenizer, OBJECTIVES["albert"], max_seq_length=128, sop=True)


def choose(instances, chosen):
    """The packed arrays of some of the instances."""
    parts = [slice(*instances.cu_seqlens[[i, i + 1]]) for i in chosen]
    return (
        np.concatenate([instances.input_ids[part] for part in parts]),
        np.concatenate([instances.word_starts[part] for part in parts]),
        np.cumsum([0, *(part.stop - part.start for part in parts)]),
        instances.instance_ids[chosen],
    )


RULE = MaskRule()


def draw(arrays, tokenizer, rule=RULE, seed=0, epoch=0, similar=None):
    return draw_masks(*arrays, mask_vocabulary(tokenizer, similar), rule, seed=seed, epoch=epoch)


@pytest.fixture(scope="module")
def arrays(instances):
    return choose(instances, np.arange(len(instances)))


def slow_masks(input_ids, word_starts, key, probabilities, tokenizer, most=10**9):
    """Positions masked in one sequence, by the rule as it is written, a word at a time."""
    special = np.isin(input_ids, mask_vocabulary(tokenizer).special_ids)
    edges = [*np.flatnonzero(word_starts | special), len(special)]
    words = [(a, b) for a, b in pairwise(edges) if not special[a]]
    groups, stretch = [], []
    for number, (a, b) in enumerate(words):
        stretch.append((a, b))
        if number + 1 == len(words) or words[number + 1][0] != b:
            at = 0
            for place, _ in stretch:
                if at >= len(stretch):
                    break
                bits = int(random_bits(np.array([key], np.uint64), np.array([place]), 0)[0])
                low, high = bits & 0xFFFF_FFFF, bits >> 32
                length = 1 + sum(low >= int(bound * 2**32) for bound in np.cumsum(probabilities)[:-1])
                groups.append((high, stretch[at][0], stretch[at : at + length]))
                at += length
            stretch = []
    left = min(max(1, round(0.15 * sum(b - a for a, b in words))), most)
    masked, is_first = [], True
    for high, _, group in sorted(groups):
        if group[0][1] - group[0][0] > most:
            continue
        for a, b in group:
            if b - a > left and not is_first:
                draw = float(last_word_draw(np.array([high], np.uint64))[0])
                is_taken = draw * (b - a) < left and b - a <= most - len(masked)
                return sorted([*masked, *range(a, b)] if is_taken else masked)
            masked += range(a, b)
            left -= b - a
            is_first = False
    return sorted(masked)


@pytest.mark.parametrize("objective", [*OBJECTIVES])
@pytest.mark.parametrize("most", [None, 2])
def test_the_vectorised_draw_is_the_rule_as_written(instances, tokenizer, objective, most):
    probabilities = length_probabilities(objective, 3)
    for number in range(0, len(instances), 9):
        chosen = choose(instances, np.array([number]))
        masks = draw(chosen, tokenizer, MaskRule(objective=objective, max_predictions=most))
        (key,) = mix(chosen[3] + salt(0, 0))
        expected = slow_masks(chosen[0], chosen[1], key, probabilities, tokenizer, most or 10**9)
        assert masks.positions.tolist() == expected


def test_lengths_are_those_of_the_papers():
    assert length_probabilities("roberta", 3) == pytest.approx([1])
    assert length_probabilities("macbert", 3) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    spans = length_probabilities("spanbert", 3)
    assert len(spans) == 10 and spans[1:] / spans[:-1] == pytest.approx([0.8] * 9)
    assert spans @ np.arange(1, 11) == pytest.approx(3.8, abs=0.05)  # words, as SpanBERT's section 3.1 says


@pytest.mark.parametrize("objective", ["albert", "roberta", "spanbert"])
def test_replacements_are_eighty_ten_ten(arrays, tokenizer, objective):
    drawn = [draw(arrays, tokenizer, MaskRule(objective=objective), epoch=epoch) for epoch in range(20)]
    labels = np.concatenate([m.labels for m in drawn])
    now = np.concatenate([m.replacements for m in drawn])
    n = len(labels) / (4 if objective == "spanbert" else 1)  # a span's tokens are decided together
    # three standard deviations of a binomial share
    for share, expected in ((now == tokenizer.mask_id).mean(), 0.8), ((now == labels).mean(), 0.1):
        assert abs(share - expected) < 3 * (expected * (1 - expected) / n) ** 0.5 + 1e-3
    random = now[(now != tokenizer.mask_id) & (now != labels)]
    assert np.isin(random, tokenizer.replacement_ids()).all()


def test_all_tokens_of_a_span_get_the_same_kind_of_replacement(arrays, tokenizer):
    rule = MaskRule(objective="spanbert")
    masks = draw(arrays, tokenizer, rule)
    word = np.cumsum(arrays[1])[masks.positions]
    hidden = masks.replacements == tokenizer.mask_id
    for number in np.unique(word):
        assert len(set(hidden[word == number])) == 1


def test_macbert_puts_similar_words_in_place_of_words(arrays, tokenizer):
    input_ids, word_starts, *_ = arrays
    edges = np.flatnonzero(word_starts)
    lengths = np.diff(edges, append=len(input_ids))
    twos = edges[lengths == 2]
    keys, first = np.unique(word_keys(input_ids, twos, np.full(len(twos), 2)), return_index=True)
    assert np.diff(word_keys(np.array([7, 8, 8, 7]), np.array([0, 2]), np.array([2, 2]))) != 0
    stand_in = tokenizer.replacement_ids()[:2]
    similar = SimilarWords(keys, np.arange(0, 2 * len(keys) + 1, 2), np.tile(stand_in, len(keys)))
    masks = draw(arrays, tokenizer, MaskRule(objective="macbert"), similar=similar)
    assert not (masks.replacements == tokenizer.mask_id).any()
    is_two = np.isin(masks.positions, np.concatenate([twos, twos + 1]))
    first_token = np.isin(masks.positions, twos)
    replaced = masks.replacements[first_token] == stand_in[0]
    # the tokens of a word share their kind; a random id may be the same
    assert ((masks.replacements[is_two & ~first_token] == stand_in[1]) == replaced).mean() > 0.99
    share = replaced.mean()
    assert abs(share - 0.8) < 3 * (0.16 / first_token.sum()) ** 0.5 + 0.01
    assert np.isin(masks.replacements[~is_two], tokenizer.replacement_ids()).all()


@pytest.mark.parametrize("objective", [*OBJECTIVES])
def test_draws_depend_on_seed_epoch_and_instance_alone(instances, arrays, tokenizer, objective, monkeypatch):
    rule = MaskRule(objective=objective)
    together = draw(arrays, tokenizer, rule, epoch=3)
    cu_seqlens = arrays[2]
    for number in (0, 5, len(instances) - 1):
        alone = draw(choose(instances, np.array([number])), tokenizer, rule, epoch=3)
        inside = (together.positions >= cu_seqlens[number]) & (together.positions < cu_seqlens[number + 1])
        assert (together.positions[inside] - cu_seqlens[number]).tolist() == alone.positions.tolist()
        assert together.replacements[inside].tolist() == alone.replacements.tolist()
    with monkeypatch.context() as patch:
        patch.setattr("data.instances.masking.BLOCK_TOKENS", 100)
        parts = draw(arrays, tokenizer, rule, epoch=3)
    assert together.positions.tolist() == parts.positions.tolist()
    assert together.replacements.tolist() == parts.replacements.tolist()
    assert draw(arrays, tokenizer, rule, epoch=4).positions.tolist() != together.positions.tolist()
    assert draw(arrays, tokenizer, rule, seed=1, epoch=3).positions.tolist() != together.positions.tolist()


def test_the_same_documents_give_the_same_instances_and_masks_in_every_release(arrays, tokenizer):
    drawn = [draw(arrays, tokenizer, MaskRule(objective=objective)) for objective in OBJECTIVES]
    arrays = [*arrays, *(part for masks in drawn for part in masks[:3])]
    numbers = b"".join(part.astype(np.uint64).tobytes() for part in arrays)
    # when this changes raise BUILDING_VERSION, or corpora keep shards of both kinds
    assert hashlib.sha256(numbers).hexdigest()[:16] == "d0f9da31f5fdf3f2"


@pytest.mark.parametrize("size, kind", [(1 << 16, "uint16"), (1 << 16 | 1, "uint32")])
def test_a_shard_stores_ids_in_what_the_vocabulary_needs(instances, tokenizer, size, kind):
    vocabulary = replace(mask_vocabulary(tokenizer), vocab_size=size)
    ids = list(map(document_id, sample_texts()))
    sides = np.zeros(len(ids), np.uint32)
    table = instance_table(instances, ids, sides, vocabulary, RULE, max_seq_length=128, seed=0)
    for name in ("input_ids", "masked_input_ids", "masked_labels"):
        assert str(table[name].type.value_type) == kind


@pytest.mark.parametrize("sequences", [0, 2])
def test_nothing_to_mask_gives_no_masks(tokenizer, sequences):
    special = np.array([tokenizer.cls_id, tokenizer.sep_id] * sequences, int)
    ends, ids = 2 * np.arange(sequences + 1), np.arange(sequences, dtype=np.uint64)
    assert len(draw((special, np.ones(len(special), bool), ends, ids), tokenizer).positions) == 0
