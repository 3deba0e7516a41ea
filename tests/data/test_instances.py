import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.instances import IN_ORDER, NO_ORDER, SWAPPED, build_instances, tokenize_document
from data.records import document_id
from data.segmentation import split_words
from data.sentences import split_sentences
from tests.conftest import sample_texts


def make(text, tokenizer, **changes):
    words = [split_words(sentence) for sentence in split_sentences(text)]
    options = {"max_seq_length": 96, "sop": True, **changes}
    document = tokenize_document(document_id(text), words, tokenizer, options["max_seq_length"] - 3)
    return document, build_instances(document, tokenizer, **options)


def segments(instance):
    """Token ids of A and B without special tokens."""
    b = instance.segment_b_start
    return (instance.input_ids[1 : b - 1], instance.input_ids[b:-1]) if b else (instance.input_ids[1:-1], [])


@given(text=st.sampled_from(sample_texts()), seed=st.integers(0, 1000), copy=st.integers(0, 3))
def test_pairs_are_adjacent_come_from_one_document_and_lose_no_token(tokenizer, text, seed, copy):
    document, instances = make(text, tokenizer, seed=seed, copy=copy)
    restored = []
    for instance in instances:
        a, b = segments(instance)
        restored += [*b, *a] if instance.sop_label == SWAPPED else [*a, *b]
        assert (instance.sop_label == NO_ORDER) == (instance.segment_b_start == 0)
        assert len(instance.input_ids) <= 96 and len(instance.input_ids) == len(instance.word_starts)
        assert instance.input_ids[0] == tokenizer.cls_id and instance.input_ids[-1] == tokenizer.sep_id
        assert instance.doc_id == document.doc_id
    assert restored == document.input_ids.tolist()


def test_half_of_the_pairs_are_swapped(tokenizer):
    labels = [
        instance.sop_label
        for text in sample_texts()
        for seed in range(12)
        for instance in make(text, tokenizer, seed=seed)[1]
        if instance.sop_label != NO_ORDER
    ]
    assert set(labels) == {IN_ORDER, SWAPPED}
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / len(labels) ** 0.5


def test_without_sop_there_are_only_single_segments(tokenizer):
    assert {i.sop_label for i in make(sample_texts()[0], tokenizer, sop=False)[1]} == {NO_ORDER}


def test_one_sentence_gives_one_instance_without_label(tokenizer):
    (instance,) = make("今天的茶很好喝。", tokenizer)[1]
    assert instance.sop_label == NO_ORDER and instance.segment_b_start == 0


@pytest.mark.parametrize("change", [{"seed": 1}, {"copy": 1}])
def test_ids_are_stable_and_draws_differ_by_seed_and_copy(tokenizer, change):
    text = sample_texts()[0]
    first, again, other = (
        make(text, tokenizer)[1],
        make(text, tokenizer)[1],
        make(text, tokenizer, **change)[1],
    )
    assert [i.input_ids.tolist() for i in first] == [i.input_ids.tolist() for i in again]
    assert [i.instance_id for i in first] == [i.instance_id for i in again]
    assert len({i.instance_id for i in first}) == len(first)
    assert [i.input_ids.tolist() for i in first] != [i.input_ids.tolist() for i in other]
