"""Held-out documents: which are drawn, how they are scored, and how sure the scores are."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from albert.batching import InstanceStream, is_held_out
from albert.evaluation import Intrinsic, changes_of, outcomes_of, scores_of, seen_share, sums_of
from albert.evaluation.held_out import flip_segments
from albert.model import IGNORED
from benchmarks.coverage import coverage, held_out_change, simulate
from tests.albert.report_samples import comparison, model
from tests.conftest import small_model
from tests.corpora import make_corpus


def stream(tea_shards, **options):
    return InstanceStream(tea_shards, **{"batch_tokens": 600, "held_out_share": 0.3, **options})


def test_every_run_draws_the_same_and_masks_it_alike(tmp_path, samples, vocabulary_file, monkeypatch):
    monkeypatch.setattr("data.instances.shards.ROW_GROUP", 16)  # many, of which each has some
    tea_shards = make_corpus(tmp_path, "tea", samples / "tea.jsonl", vocabulary_file, seed=3)
    drawn = stream(tea_shards).held_out(3000)
    assert 3000 <= drawn.lengths.sum() < 3200
    assert is_held_out(drawn.sides, 0.3).all()
    other = stream(tea_shards, seed=5, batch_tokens=200)
    more = other.held_out(6000)
    assert np.array_equal(other.held_out(3000).instance_ids, drawn.instance_ids)
    assert np.array_equal(more.instance_ids[: len(drawn)], drawn.instance_ids)
    everything, sides = (
        np.concatenate([pq.read_table(path)[name] for path in tea_shards]) for name in ("instance_id", "side")
    )
    assert len(other.held_out(10**6)) == is_held_out(sides, 0.3).sum()
    places = np.flatnonzero(np.isin(everything, drawn.instance_ids)) / len(everything)
    assert abs(places.mean() - 0.5) < 0.15 and places.max() > 0.8  # from all over the corpus
    runs = stream(tea_shards), stream(tea_shards, seed=5, masking="static")  # which trains on stored masks
    first, second = (list(one.held_out_batches(3000)) for one in runs)
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))


def test_turning_the_segments_twice_gives_the_batch_again(tea_shards):
    source = stream(tea_shards)
    for batch in source.held_out_batches(3000):
        turned = flip_segments(batch)
        again = flip_segments(turned)
        assert torch.equal(again.input_ids, batch.input_ids)
        assert torch.equal(again.token_type_ids, batch.token_type_ids)
        ends = batch.cu_seqlens.tolist()
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            ids, types = batch.input_ids[a:b].tolist(), batch.token_type_ids[a:b].tolist()
            middle = types.index(1) if 1 in types else b - a
            expected = [ids[0], *ids[middle:], *ids[1:middle]]
            assert turned.input_ids[a:b].tolist() == expected
            assert turned.token_type_ids[a:b].sum() == (middle - 1 if 1 in types else 0)


def test_processes_share_out_the_sums_and_always_one_answer_is_right_of_half_the_pairs(tea_shards, tokenizer):
    model, source = small_model(tokenizer, hidden_dropout_prob=0.5), stream(tea_shards)
    torch.nn.init.zeros_(model.sop.weight)
    model.sop.bias.data = torch.tensor([0.0, 1.0])
    drawn = source.held_out(6000)
    sums = sums_of(model, source, drawn)
    parts = [sums_of(model, source, drawn, part=(k, 2)) for k in range(2)]
    torch.testing.assert_close(parts[0] + parts[1], sums)
    assert all(part.any() for part in parts)
    scores = scores_of(sums.numpy(), drawn.doc_keys)
    assert scores["sop_accuracy"] == 0.5 and "sop_accuracy_low" not in scores  # no interval of width 0
    assert scores["pairs"] == (drawn.sop_labels != IGNORED).sum() > 10
    assert scores["documents"] == len(set(drawn.doc_keys.tolist())) > 10
    assert scores["mlm_loss_low"] < scores["mlm_loss"] < scores["mlm_loss_high"]


def test_intervals_cover_the_mean_over_documents_that_differ():
    rng = np.random.default_rng(0)
    documents, covered = np.repeat(np.arange(60), 5), 0
    for _ in range(200):
        sums = np.zeros((300, 6))
        sums[:, 2] = rng.integers(5, 20, 300)
        sums[:, 0] = sums[:, 2] * rng.normal(3, 1, 60)[documents]
        scores = scores_of(sums, documents)
        covered += scores["mlm_loss_low"] <= 3 <= scores["mlm_loss_high"]
    assert 0.88 <= covered / 200 <= 0.99
    sums[:, 1] = sums[:, 2] - (documents == 0)  # all right but for some of one document
    scores = scores_of(sums, documents)
    assert scores["mlm_accuracy_low"] < scores["mlm_accuracy"] < scores["mlm_accuracy_high"] == 1
    alone = scores_of(sums, np.zeros(300))
    assert alone["documents"] == 1 and not {"mlm_loss_low", "sop_accuracy"} & alone.keys()
    assert changes_of(sums, sums, documents) == {"mlm_loss_change": 0, "mlm_accuracy_change": 0}


def test_outcomes_kept_as_text_give_the_interval_of_the_sums():
    rng = np.random.default_rng(0)
    documents, before = np.repeat(rng.integers(2**62, size=9), 7), np.zeros((63, 6))
    before[3:, 2] = rng.integers(5, 20, 60)  # three instances without a mask
    after = before.copy()
    before[:, 1], after[:, 1] = rng.binomial(before[:, 2].astype(int), 0.4), rng.integers(0, before[:, 2] + 1)
    before[:50, 5] = after[:50, 5] = 2  # pairs, in both orders
    before[:50, 4], after[:50, 4] = rng.integers(0, 3, (2, 50))
    changes = changes_of(before, after, documents)
    low, of_order, high = (changes[f"sop_accuracy_change{end}"] for end in ("_low", "", "_high"))
    assert low < of_order < high and of_order == (after[:, 4] - before[:, 4]).sum() / 100
    kept = [Intrinsic(general_outcomes=outcomes_of(sums, documents)) for sums in (before, after)]
    _, better = comparison(*(model("m", [0.8], intrinsic=one) for one in kept)).models
    ends = (better.drift, better.drift - better.drift_half_width, better.drift + better.drift_half_width)
    assert ends == pytest.approx([changes[f"mlm_accuracy_change{end}"] for end in ("", "_low", "_high")])


@pytest.mark.parametrize("D", [2, 3, 8, 60])
def test_the_interval_of_a_change_is_paired_and_holds_it_for_few_documents_too(D):
    intervals = simulate(partial(held_out_change, D=D, deviation=0.3), 300)
    assert 91 <= coverage(intervals) <= 99
    assert D < 60 or max(half for _, half in intervals) < 0.05  # although documents' losses vary by 1


def test_text_that_stands_in_training_text_is_counted(tea_shards):
    source = stream(tea_shards)
    instances, rows = next(source.training_text())
    few = instances.take(rows[:40])
    assert seen_share(few, [source]) == 1.0
    strange = replace(few, input_ids=few.input_ids[::-1].copy(), segment_b_start=few.segment_b_start * 0)
    assert seen_share(strange, [source]) < 0.05
    half = seen_share(source.held_out(10**6), [stream(tea_shards, held_out_share=0.0)])
    assert half == 1.0 > seen_share(source.held_out(10**6), [source])
