from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.instances import OBJECTIVES, build_instances
from data.instances.cutting import NO_ORDER, SWAPPED
from data.sources import document_id
from tests.conftest import sample_texts
from tests.data.helpers import tokenize_texts


def make(texts, tokenizer, objective="albert", **changes):
    options = {"max_seq_length": 96, "sop": True, **changes}
    documents = tokenize_texts(texts, tokenizer, options["max_seq_length"] - 3)
    ids = list(map(document_id, texts))
    return documents, build_instances(documents, ids, tokenizer, OBJECTIVES[objective], **options)


def rows(instances):
    """(document, ids, word starts, start of B, label) of each instance."""
    columns = (instances.documents, instances.segment_b_start, instances.sop_labels)
    bounds = pairwise(instances.cu_seqlens.tolist())
    for (begin, end), document, b, label in zip(bounds, *(map(int, one) for one in columns), strict=True):
        yield document, instances.input_ids[begin:end], instances.word_starts[begin:end], b, label


def unswapped(ids, b, label):
    """Token ids in the document's order, without special tokens."""
    first, second = (ids[1 : b - 1], ids[b:-1]) if b else (ids[1:-1], ids[:0])
    return [*second, *first] if label == SWAPPED else [*first, *second]


# the last one is a word longer than a chunk
some_texts = st.lists(st.sampled_from([*sample_texts(), "a" * 100]), min_size=1, max_size=4)


@given(texts=some_texts, seed=st.integers(0, 1000), copy=st.integers(0, 3))
def test_pairs_are_adjacent_come_from_one_document_and_lose_no_token(tokenizer, texts, seed, copy):
    documents, instances = make(texts, tokenizer, seed=seed, copy=copy)
    restored = {number: [] for number in range(len(texts))}
    for document, ids, starts, b, label in rows(instances):
        restored[document] += unswapped(ids, b, label)
        assert (label == NO_ORDER) == (b == 0)
        assert len(ids) <= 96 and len(ids) == len(starts)
        assert ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id and starts[[0, 1, b, -1]].all()
        assert b == 0 or ids[b - 1] == tokenizer.sep_id
    bounds = documents.pieces[documents.first_piece]
    for number, tokens in restored.items():
        assert tokens == documents.input_ids[bounds[number] : bounds[number + 1]].tolist()


@given(texts=some_texts, seed=st.integers(0, 1000))
def test_neighbouring_documents_do_not_change_a_documents_instances(tokenizer, texts, seed):
    together, alone = (make(some, tokenizer, seed=seed)[1] for some in (texts, texts[-1:]))
    ids = [row[1].tolist() for row in rows(together) if row[0] == len(texts) - 1]
    assert ids == [row[1].tolist() for row in rows(alone)]
    assert together.instance_ids[-len(alone) :].tolist() == alone.instance_ids.tolist()


@given(texts=some_texts)
def test_full_sentences_run_across_documents(tokenizer, texts):
    documents, instances = make(texts, tokenizer, "roberta", sop=np.ones(len(texts), bool))
    tokens = [token for _, ids, _, b, label in rows(instances) for token in unswapped(ids, b, label)]
    assert [token for token in tokens if token != tokenizer.sep_id] == documents.input_ids.tolist()
    bounds = documents.pieces[documents.first_piece]
    begin = 0
    for document, ids, *_ in rows(instances):
        assert len(ids) <= 96
        separators = np.flatnonzero(ids[1:-1] == tokenizer.sep_id)
        end = begin + len(ids) - 2 - len(separators)
        # a separator stands between documents, and nowhere else
        between = separators - np.arange(len(separators)) + begin
        assert between.tolist() == bounds[(bounds > begin) & (bounds < end)].tolist()
        touched = np.flatnonzero((bounds[:-1] < end) & (bounds[1:] > begin))
        assert document == touched[0]
        begin = end
    assert len(make(["茶很香。", "水很热。"], tokenizer, "roberta")[1]) == 1


def test_half_of_the_pairs_are_swapped_and_no_lengths_tell_which(tokenizer):
    rng = np.random.default_rng(0)
    texts = ["".join("茶" * int(n) + "。" for n in rng.geometric(0.05, 60).clip(max=80)) for _ in range(800)]
    stop = tokenizer.encode("。")[0][0]
    longer, labels = [], []
    for _, ids, _, b, label in rows(make(texts, tokenizer)[1]):
        if b:
            ends = np.flatnonzero(ids == stop)
            lengths, of_a = np.diff(ends, prepend=0), int((ends < b).sum())
            lengths[of_a] -= 1  # the separator
            outer, inner = lengths[0] + lengths[-1], lengths[of_a - 1] + lengths[of_a]
            longer.append((np.sign(2 * b - len(ids) - 1), np.sign(outer - inner)))
            labels.append(label)
    assert abs(np.mean(labels) - 0.5) < 3 * 0.5 / len(labels) ** 0.5
    for one in np.transpose(longer):
        assert abs(np.corrcoef(one, labels)[0, 1]) < 3 / len(labels) ** 0.5


def test_pairs_are_split_after_any_of_their_sentences_whatever_their_order(tokenizer):
    _, instances = make(["茶。" * 9000], tokenizer)  # sentences of two tokens
    after, of, labels = [], [], []
    for _, ids, _, b, label in rows(instances):
        if b:
            halves = b - 2, len(ids) - b - 1
            after.append(halves[label == SWAPPED] // 2)
            of.append(sum(halves) // 2)
            labels.append(label)
    share = (np.array(after) - 0.5) / (np.array(of) - 1)  # even over 0..1
    assert min(after) == 1 and max(np.array(after) - of) == -1
    quarters = [0.25, 0.5, 0.75]
    assert (abs(np.quantile(share, quarters) - quarters) < 3 * 0.5 / len(share) ** 0.5).all()
    assert abs(np.corrcoef(share, labels)[0, 1]) < 3 / len(labels) ** 0.5


def test_one_chunk_in_ten_is_short(tokenizer):
    text = "。".join(["茶"] * 40_000)
    lengths = make([text], tokenizer, sop=False)[1].lengths[:-1]
    assert abs((lengths < 90).mean() - 0.1) < 3 * (0.09 / len(lengths)) ** 0.5
    assert make(["茶水。" * 31], tokenizer)[1].lengths.tolist() == [96]  # none is left empty
    short = lengths[lengths < 90]  # of any length
    assert 30 < np.median(short) < 70 and short.min() < 20 and short.max() > 80


@pytest.mark.parametrize("text, found", [("今天的茶很好喝。", [(0, NO_ORDER)]), ("\u3000", [])])
def test_one_sentence_gives_one_instance_without_label_and_none_gives_nothing(tokenizer, text, found):
    assert [(b, label) for *_, b, label in rows(make([text], tokenizer)[1])] == found


def test_no_mark_inside_a_sentence_tells_the_order_of_a_pair(tokenizer):
    """Sentences that are longer than a chunk are cut at commas, and are no part of a pair."""
    long = f"今天的{'水很热，' * 15}{'我们慢慢喝' * 10}。\n"
    texts = [(long + "茶很香，也不贵。\n" * (n % 9)) * 3 for n in range(200)]
    documents, instances = make(texts, tokenizer)
    assert set(documents.input_ids[documents.pieces[1:] - 1]) == set(tokenizer.encode("，。")[0])
    found = 0
    for _, ids, _, b, _ in rows(instances):
        if b:
            found += 1
            for segment in (ids[1 : b - 1], ids[b:-1]):
                text = tokenizer.decode(segment).replace(" ", "")
                assert text[:2] in ("今天", "茶很") and text[-1] == "。"
    assert found > 40


@pytest.mark.parametrize("change", [{"seed": 1}, {"copy": 1}])
def test_ids_are_stable_and_draws_differ_by_seed_and_copy(tokenizer, change):
    texts = sample_texts()[:3]
    first, again, other = (make(texts, tokenizer, **options)[1] for options in ({}, {}, change))
    assert (first.input_ids == again.input_ids).all() and (first.instance_ids == again.instance_ids).all()
    assert len(set(first.instance_ids)) == len(first)
    assert first.input_ids.tolist() != other.input_ids.tolist()
    assert bool({*first.instance_ids} & {*other.instance_ids}) == ("copy" not in change)
