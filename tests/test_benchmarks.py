"""The benchmarks of a CPU, at a small size."""

import json
import time

import pytest

from albert.config import AlbertConfig
from benchmarks import fine_tune_step, identity, results_file, train_step
from benchmarks.alternating import Rates, alternate, keep_best
from benchmarks.corpora import source_names
from benchmarks.cpu_steps import needed_flops
from benchmarks.gpu_model import training_flops


@pytest.mark.slow
def test_steps_and_their_rivals_run_on_a_cpu(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(train_step, "BATCH_TOKENS", 256)
    rows = [f"茶树{n}月怎么修剪\t茶树在{n}月要修剪吗\t1" for n in range(99)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["text_a\ttext_b\tlabel", *rows]) + "\n", "utf-8")
    pairs = ["--pairs", str(tmp_path / "pairs.tsv")]
    train_step.main(["--only", "tiny", "pairs", "start", "--rounds", "1", "--sequences", "1", *pairs])
    verdict = capsys.readouterr().out
    for goal in ("tiny: ", "arithmetic limit", "pairs: ", "waiting for a batch", "start: "):
        assert goal in verdict
    results = json.loads((tmp_path / "train_step.json").read_text("utf-8"))["results"]
    assert results["tiny"]["rival"] in ("sdpa fp32", "sdpa bf16", "eager fp32", "eager bf16")
    assert results["tiny"]["times"] > 0 and 0 <= results["pairs"]["wait_share"] < 1
    assert results["start"]["processor_seconds"] > 0


def test_needed_flops_of_a_step_are_those_counted_by_hand():
    config = AlbertConfig.preset("tiny")
    whole = training_flops(config, [128] * 32, 614)
    # a step that looks at every token after the last layer computes it all, and the MLM head's transform
    assert needed_flops(config, 4096, 128, 4096, 614) == whole
    spared = 3 * (4096 - 646) * 18 * 312**2  # output projection 2 H^2 and feed-forward 16 H^2, three times
    assert needed_flops(config, 4096, 128, 646, 614) == whole - spared


def test_rivals_take_turns_and_the_slow_ones_leave():
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
    kept = keep_best(works, "own", kept=1)
    assert list(kept) == ["own", "fast"]
    turns.clear()
    rates = alternate(kept, 2)
    assert turns == ["own", "fast"] * 3
    assert rates["own"].times(rates["fast"])[0] < 1 and rates["own"].times_by_processor(rates["fast"]) < 1


def test_times_are_of_the_same_round():
    ours, theirs = Rates((10.0, 1.0, 6.0), (4.0, 4.0, 4.0)), Rates((5.0, 1.0, 2.0), (2.0, 1.0, 4.0))
    assert ours.times(theirs) == (2.0, 1.0, 3.0) and ours.times_by_processor(theirs) == 2.0


def test_fine_tuning_and_trainer_run_on_the_same_examples(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    for split in ("train", "dev"):
        lines = (fine_tune_step.SAMPLES / f"tea_topics_{split}.tsv").read_text("utf-8").splitlines()
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines[:41]) + "\n", "utf-8")
    fine_tune_step.main(
        ["--train", str(tmp_path / "train.tsv"), "--dev", str(tmp_path / "dev.tsv"), "--seeds", "0"]
    )
    verdict = capsys.readouterr().out
    assert "trained:" in verdict and "predicted:" in verdict
    result = json.loads((tmp_path / "fine_tune_step.json").read_text("utf-8"))
    assert result["examples"] == {"train": 40, "dev": 40}
    assert set(result["accuracies"]) == {"jixu", "fp32", "bf16"}
    assert result["trained"]["examples_per_second"] > 0


def test_words_and_ids_are_compared_over_a_whole_source(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    source = tmp_path / "茶.txt"
    source.write_text("明前龙井要慢慢喝。\nＡＢＣ牌[MASK]茶杯。\n\n水要慢慢烧。\n", "utf-8")
    assert identity.main(["--source", str(source)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("in 0: identical")
    result = json.loads((tmp_path / "identity.json").read_text("utf-8"))
    assert result["sources"] == [
        {"source": "茶.txt", "texts": 3, "characters": 28, "words_differ": 0, "ids_differ": 0}
    ]
    monkeypatch.setattr(identity.Segmenter, "split", lambda segmenter, text: list(text))
    assert identity.main(["--source", str(source)]) == 1
    assert "words differ from jieba's in 3 text(s)" in capsys.readouterr().out


def test_a_result_names_its_sources_without_their_place(tmp_path):
    assert source_names([f"{tmp_path}/raw/", "s3://bucket/laws.jsonl.gz"]) == ["raw", "laws.jsonl.gz"]
    assert source_names([]) == ["general.txt", "tea.jsonl"]
