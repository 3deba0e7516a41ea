"""The GPU benchmark, as far as a machine without a GPU can try it."""

import inspect
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from albert.config import AlbertConfig
from benchmarks import fine_tune_step, gpu, results_file, train_step
from benchmarks.alternating import Rates, alternate, keep_best
from benchmarks.cpu_steps import needed_flops
from benchmarks.gpu_cases import Scale, kernel_cases, lengths_of
from benchmarks.gpu_model import model_cases, training_flops
from benchmarks.measure import Ceilings, Result, Timing, table

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_2(capsys):
    assert gpu.main([]) == 2
    assert "nothing measured" in capsys.readouterr().err


def test_dry_run_lists_every_kernel_and_model(capsys):
    assert gpu.main(["--dry-run"]) == 0
    listed = capsys.readouterr().out
    for name in (
        "attention base T=512 mixed",
        "embed tiny bright",
        "mlm_loss n=9830",
        "step large T=128",
        "bias_gelu",
    ):
        assert name in listed


def test_whole_models_need_torch_and_triton_alone():
    code = (
        "import sys; sys.modules |= dict.fromkeys(['safetensors', 'yaml', 'pyarrow', 'tokenizers'])\n"
        "from benchmarks import gpu\n"
        "gpu.main(['--dry-run', '--only', 'step'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 13 and not any("skipped" in line for line in lines)


@pytest.mark.slow
def test_every_case_runs_small_on_a_cpu(capsys):
    assert gpu.main(["--smoke"]) == 0
    ran = capsys.readouterr().out
    assert ran.count("ran jixu") == len([*kernel_cases(gpu.SMALL), *model_cases(gpu.SMALL)])
    assert "transformers" in ran


@pytest.mark.parametrize("mix", ["full", "mixed"])
def test_lengths_fill_the_batch(mix):
    lengths = lengths_of(mix, 128, 65536)
    assert sum(lengths) == 65536 and max(lengths) <= 128 and min(lengths) > 0


def test_flops_of_a_step_are_those_counted_by_hand():
    config = AlbertConfig.preset("base")
    per_token = training_flops(config, [128] * 512, 0) / 65536
    # 12 layers of 24 H^2 and attention's 4 L H, the projection 2 E H, three times
    assert per_token == 3 * (12 * (24 * 768**2 + 4 * 128 * 768) + 2 * 128 * 768)


def test_attention_counts_two_products_forward_and_five_backward():
    case = {case.name: case for case in kernel_cases(Scale())}["attention base T=512 full forward"]
    assert case.flops == 128 * 2 * (2 * 512 * 512 * 64 * 12)
    both = {case.name: case for case in kernel_cases(Scale())}["attention base T=512 full both passes"]
    assert both.flops == 3.5 * case.flops


def test_the_table_gives_rate_share_and_ratio_and_why_a_rival_is_absent():
    timings = {"jixu": Timing(1.0, 1, 1, 2**20), "rival": Timing(2.0, 2, 2, 0)}
    result = Result("case", timings, {"other": "not installed"}, flops=1e12, bytes=1e9)
    text = table([result], Ceilings(flops=2e15, bytes=4e12))
    assert "| case | jixu | 1.000 | 1000.0 | 1000 | 50% | 1 |  |" in text
    assert "| case | rival | 2.000 | 500.0 | 500 | 25% | 0 | 2.00x |" in text
    assert "| case | other | not installed |" in text


def test_the_correctness_grid_calls_every_claim_as_it_is_defined(monkeypatch):
    from tests.kernels import checks

    called = []

    def stub(name, function):
        def claim(*arguments):
            inspect.signature(function).bind(*arguments)
            called.append(name)
            assert name != "embed", "a wrong number"

        return claim

    names = ("attention", "mlm_loss", "embed", "add_layer_norm", "bias_gelu", "attention_without_neighbours",
             "attention_of_extreme_scores")  # fmt: skip
    for name in names:
        monkeypatch.setattr(checks, name, stub(name, getattr(checks, name)))
    wrong = gpu.check_correctness()
    assert set(called) == set(names)
    assert len(wrong) == called.count("embed") and "a wrong number" in wrong[0]


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
