"""The GPU benchmark, as far as a machine without a GPU can test it."""

import importlib
import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from albert.model import AlbertConfig
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import correctness as gpu_correctness
from benchmarks.gpu.cases import kernel_cases
from benchmarks.gpu.correctness import Claim, check
from benchmarks.gpu.goals import CHUNKS, FLASH, GOALS, SDPA, goals_table, judge
from benchmarks.gpu.model import training_flops
from benchmarks.gpu.scale import Scale, lengths_of
from benchmarks.gpu.timing import Case, Ceilings, Result, Timing, measure, table
from tests import ROOT
from tests.kernels import checks

SMALL = Scale(device="cpu", tokens=512, vocabulary=500, kernels="auto")
CEILINGS = Ceilings(flops=8e14, bytes=4e12)


def later(seconds: float = 600) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def triton_kernels() -> str:
    """The choice of kernels for the interpreter."""
    if torch.cuda.is_available() or not gpu.has_triton:
        pytest.skip("for Triton's interpreter")
    return "triton"


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


def test_whole_models_need_torch_and_triton_alone(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_alone"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 13 and not any("skipped" in line for line in lines)
    assert "held=1, wrong=[]" in done.stdout


@pytest.mark.slow
def test_every_case_runs_small_on_a_cpu(capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    assert gpu.main(["--smoke"]) == 0
    ran = capsys.readouterr().out
    assert ran.count("{'jixu': ") == len(gpu.all_cases(SMALL))
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
    # of the last layer the output projection and the feed-forward part of one token in 128
    spared = training_flops(config, [128] * 512, 0) - training_flops(config, [128] * 512, 0, rows=512)
    assert spared == 3 * (65536 - 512) * (2 * 768**2 + 16 * 768**2)


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
    called = []

    def stub(name, function):
        def claim(*arguments):
            inspect.signature(function).bind(*arguments)
            called.append(name)
            assert name != "embed", "a wrong number"

        return claim

    grid = list(gpu_correctness.claims())
    for module, name in {(claim.module, claim.function) for claim in grid}:
        home = importlib.import_module(module)
        monkeypatch.setattr(home, name, stub(name, getattr(home, name)))
    outcome = check(grid, later())
    assert {"attention", "mlm_loss", "embed", "add_layer_norm", "bias_gelu"} <= set(called)
    assert len(outcome.wrong) == called.count("embed") and outcome.held == len(grid) - len(outcome.wrong)
    assert all(kernel == "embed" and "a wrong number" in why for kernel, why in outcome.wrong)


def test_claims_left_out_for_lack_of_time_are_named():
    outcome = check([Claim("attention", "attention", ([1], 32))], later(-1))
    assert outcome.held == 0 and outcome.unchecked == ["attention([1], 32): no time left"]


def ends_its_process(package) -> None:
    os._exit(7)


def says_where(package, folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()


def never_ends(package) -> None:
    time.sleep(600)


@pytest.mark.slow
def test_claims_are_checked_in_parallel_and_one_that_ends_its_process_is_wrong(
    triton_kernels, tmp_path, monkeypatch
):
    def claim(function, *arguments):
        return Claim("embed", function.__name__, arguments, __name__)

    monkeypatch.setattr(gpu_correctness, "GRACE_SECONDS", 0.0)
    places = [claim(says_where, str(tmp_path)) for _ in range(4)]
    grid = [*places, claim(ends_its_process), *places]
    outcome = check(grid, later(300), processes=2)
    assert outcome.held == 8 and not outcome.unchecked
    assert 2 <= len(list(tmp_path.iterdir())) <= 3  # one more after the one that ended
    assert outcome.wrong == [("embed", "ends_its_process(): its process ended with status 7")]
    late = check([claim(never_ends)], later(1), processes=1)
    assert late.unchecked == ["never_ends(): not done in time"]


def test_failures_and_absences_are_recorded_and_end_nothing():
    def fails():
        raise ValueError("no such backend\nand more")

    result = measure(Case("x", lambda: {"jixu": int, "rival": fails, "other": "not installed"}), later())
    assert set(result.timings) == {"jixu"}
    assert result.absent == {"rival": "ValueError: no such backend", "other": "not installed"}
    assert measure(Case("x", fails), later()).absent == {"jixu": "ValueError: no such backend"}


def test_nothing_starts_after_the_deadline_and_no_compilation_shortly_before():
    assert measure(Case("x", lambda: {"jixu": int}), later(-1)).absent == {"jixu": "no time left"}
    soon = measure(Case("x", lambda: {"jixu": int, "torch.compile": int}), later(10))
    assert set(soon.timings) == {"jixu"} and soon.absent == {"torch.compile": "no time left"}


def test_a_run_in_the_interpreter_checks_times_judges_and_writes(tmp_path, triton_kernels, monkeypatch):
    def fails():
        raise RuntimeError("out of memory")

    scale = Scale("cpu", 64, 500, triton_kernels)
    names = ("add_layer_norm tiny forward", "bias_gelu tiny both passes")
    cases = [Case("step tiny", fails), *(case for case in kernel_cases(scale) if case.name in names)]
    monkeypatch.setattr(gpu, "all_cases", lambda scale: cases)
    report = gpu.run(scale, 60, "tiny", tmp_path)
    assert not report.correctness.wrong and report.correctness.held == 6
    written = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    by_name = {result["case"]: result for result in written["results"]}
    assert by_name["step tiny"]["absent"] == {"jixu": "RuntimeError: out of memory"}
    assert set(by_name["add_layer_norm tiny forward"]["timings"]) == {"jixu", "torch eager"}
    assert len(written["goals"]) == len(GOALS) and written["ceilings"]["flops"] > 0
    text = (tmp_path / "gpu.md").read_text("utf-8")
    for words in (
        "6 claims about the kernels hold, 0 do not",
        "| goal |",
        "| bias_gelu tiny both passes | jixu |",
    ):
        assert words in text
    assert gpu.status(report, everyone=False) == 1


def test_wrong_kernels_are_not_timed(tmp_path, triton_kernels, monkeypatch):
    def wrong(package, *arguments):
        raise AssertionError("out: error 1")

    monkeypatch.setattr(checks, "bias_gelu", wrong)
    cases = [Case(f"{name} tiny", lambda: {"jixu": int}) for name in ("step", "bias_gelu", "embed")]
    monkeypatch.setattr(gpu, "all_cases", lambda scale: cases)
    report = gpu.run(Scale("cpu", 512, 500, triton_kernels), 60, "", tmp_path)
    assert [bool(result.timings) for result in report.results] == [False, False, True]
    assert "gave wrong results" in report.results[0].absent["jixu"] and gpu.status(report, False) == 1
    assert (
        "WRONG: bias_gelu(3, 24, 'gelu_new'): AssertionError: out: error 1"
        in (tmp_path / "gpu.md").read_text()
    )


def test_every_goal_has_its_case_and_rivals():
    names = [case.name for case in gpu.all_cases(Scale())]
    wanted = list(dict.fromkeys(name for goal in GOALS for name in goal.cases))
    assert names[: len(wanted)] == wanted
    runners = {}
    for case in kernel_cases(SMALL):
        if " tiny T=512 full forward" in case.name or "n=" in case.name and "forward" in case.name:
            runners[case.name.split()[0]] = set(case.runners())
    assert {*FLASH, *SDPA} <= runners["attention"] and {*CHUNKS, "torch.compile"} <= runners["mlm_loss"]


def test_goals_are_met_missed_or_not_measured_for_a_reason():
    def result(case, timings, absent=(), **work):
        made = {name: Timing(ms, ms, ms, 2**20) for name, ms in timings.items()}
        return Result(case, made, dict(absent), **work)

    loss = next(goal.cases[0] for goal in GOALS if "chunks" in goal.claim)
    results = [
        result(
            "step base T=128 full",
            {"jixu": 10, "transformers": 31},
            {"transformers compiled": "no time left"},
        ),
        result("step base T=512 full", {"jixu": 10}, flops=3.9e12),  # of 8e12 in 10 ms
        result("step large T=128 full", {"jixu": 10}, tokens=200),
        result("step bert-large T=128 full", {"jixu": 10}, tokens=100),
        result("attention base T=512 full forward", {"jixu": 1, "SDPA flash": 2, "varlen_attn": 0.9}),
        result(loss, {"jixu": 1, "torch.compile": 2, "torch eager": 4}),
    ]
    results[-1].timings["torch eager"].peak_bytes = 5 * 2**20
    verdicts = {v.claim: (v.met, v.detail) for v in judge(results, CEILINGS)}
    assert verdicts["base T=128: 3 times transformers eager"] == (True, "3.10, goal 3")
    assert verdicts["base T=128: 1.7 times transformers compiled"] == (
        None,
        "transformers compiled: no time left",
    )
    assert verdicts["base T=512: MFU 50%"] == (False, "0.49, goal 0.5")
    assert verdicts["large T=512: MFU 50%"] == (None, "step large T=512 full was not run")
    assert verdicts["large T=128: 1.7 times BERT-large's speed"] == (True, "2.00, goal 1.7")
    assert verdicts["attention D=64 T=512: as fast as FlashAttention-2, forward"] == (False, "0.90, goal 1")
    memory = verdicts["mlm_loss: a quarter of the memory of torch, which stores logits"]
    assert memory == (True, "5.00, goal 4")
    assert verdicts["mlm_loss: faster than chunks of 1024 rows"][0] is None
    assert "| base T=512: MFU 50% | missed | 0.49, goal 0.5 |" in goals_table(judge(results, CEILINGS))
    assert all(v.met is None for v in judge(results, None))


def test_cases_that_compile_come_last_where_no_goal_needs_them():
    cases = {case.name: case for case in gpu.all_cases(Scale())}
    name = "embed large google both passes"
    assert list(cases)[-1].endswith(", compiled") and f"{name}, compiled" in cases
    small = {case.name: case for case in gpu.all_cases(SMALL)}
    assert set(small[name].runners()) == {"jixu", "torch eager"}
    assert set(small[f"{name}, compiled"].runners()) == {"jixu", "torch.compile"}
    assert "torch.compile" in small["attention base T=512 full both passes"].runners()
