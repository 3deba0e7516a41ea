import json
import time

import pytest

from benchmarks import fine_tune_step, train_step, whole_refreshes
from benchmarks.orchestration import in_pairs, judge
from benchmarks.support import results as results_file
from benchmarks.support.alternating import Rates, alternate, keep_best
from benchmarks.support.corpora import source_names
from tests.conftest import few_examples


@pytest.mark.slow
def test_steps_and_their_rivals_run_on_a_cpu(capsys, tmp_path, write, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(train_step, "BATCH_TOKENS", 256)
    rows = [f"茶树{n}月怎么修剪\t茶树在{n}月要修剪吗\t1" for n in range(99)]
    pairs = write("pairs.tsv", "\n".join(["text_a\ttext_b\tlabel", *rows]) + "\n")
    train_step.main(only=("tiny", "pairs"), rounds=1, sequences=1, pairs=pairs)
    verdict = capsys.readouterr().out
    assert "tiny: " in verdict and "pairs: " in verdict
    results = json.loads((tmp_path / "train_step.json").read_text("utf-8"))["results"]
    assert results["tiny"]["rival"] in ("sdpa fp32", "sdpa bf16", "eager fp32", "eager bf16")
    assert results["tiny"]["times"] > 0 and results["pairs"]["times"] > 0


def test_rivals_take_turns_and_slow_ones_drop_out():
    turns = []

    def work(name, seconds):
        def run():
            turns.append(name)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
            return 1.0

        return run

    works = {"own": work("own", 0.02), "slow": work("slow", 0.3), "fast": work("fast", 0.001)}
    best = keep_best(works, "own", count=1)
    assert list(best) == ["own", "fast"]
    turns.clear()
    rates = alternate(best, 5)  # a turn may be interrupted for longer than it takes
    assert turns == ["own", "fast"] * 6
    assert rates["own"].times(rates["fast"])[0] < 1 and rates["own"].times_by_processor(rates["fast"]) < 1


def test_times_are_of_the_same_round_and_a_goal_is_decided_by_the_interval_of_the_pairs():
    ours, theirs = Rates((10.0, 1.0, 6.0), (4.0, 4.0, 4.0)), Rates((5.0, 1.0, 2.0), (2.0, 1.0, 4.0))
    assert ours.times(theirs) == (2.0, 1.0, 3.0) and ours.times_by_processor(theirs) == 2.0
    rows = {"plain": [{"seconds": 100.0}] * 6, "flow": [{"seconds": 100.0 + n} for n in (1, 3, 2, 2, 1, 3)]}
    low, mean, high = in_pairs(rows, lambda flow, plain: flow / plain - 1)
    # 2 +- 2.571 * sqrt(0.8 / 6), Student's t of 5 degrees of freedom from a table
    assert [100 * value for value in (low, mean, high)] == pytest.approx([1.0613, 2.0, 2.9387], abs=1e-4)
    judged = [judge(*of) for of in ((low, mean, high), (0.031, 0.04, 0.05), (0.01, 0.02, 0.04))]
    assert judged == ["met", "missed", "not decided"]


def test_fine_tuning_and_trainer_run_on_the_same_examples(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    splits = few_examples(tmp_path, 40, 40)
    fine_tune_step.main(train=splits["train"], dev=splits["dev"], seeds=(0,))
    verdict = capsys.readouterr().out
    assert "trained:" in verdict and "predicted:" in verdict
    result = json.loads((tmp_path / "fine_tune_step.json").read_text("utf-8"))
    assert result["examples"] == {"train": 40, "dev": 40}
    assert set(result["accuracies"]) == {"jixu", "fp32", "bf16"}
    assert result["trained"]["examples_per_second"] > 0


def test_what_a_refresh_makes_of_a_text_is_a_row_and_names_its_sources_without_their_place(
    capsys, samples, tmp_path, monkeypatch
):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    source = tmp_path / "raw"
    source.mkdir()
    (source / "tea.jsonl").write_bytes((samples / "tea.jsonl").read_bytes())
    (source / "tea.docx").write_bytes(b"")
    whole_refreshes.main(f"tea={source}")
    (row,) = json.loads((tmp_path / "whole_refreshes.json").read_text("utf-8"))["rows"]
    assert row["read"] == row["kept"] + 1 > 100 and row["left_out"] == [["not_supported", 1]]
    assert row["sentences"] > 1000 and row["wrong"] == 0 and 0 < row["without_order"] < 0.15
    assert row["masked"] == pytest.approx(0.15, abs=0.01)
    assert "| 1 not_supported |" in capsys.readouterr().out
    assert source_names([f"{tmp_path}/raw/", "s3://bucket/laws.jsonl.gz"]) == ["raw", "laws.jsonl.gz"]
    assert source_names([]) == ["general.txt", "tea.jsonl"]
