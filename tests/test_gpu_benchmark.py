"""The GPU benchmark, as far as a machine without a GPU can test it."""

import importlib
import inspect
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from albert.model import AlbertConfig
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import session, sweep, timing, workers
from benchmarks.gpu.correctness import Claim, core_claims, other_claims, tasks
from benchmarks.gpu.goals import GOALS, goals_table, judge
from benchmarks.gpu.report import Report, machine
from benchmarks.gpu.scale import Scale, lengths_of
from benchmarks.gpu.timing import Case, Ceilings, Result, Timing, measure, table
from benchmarks.gpu.workers import Failure, run_tasks
from benchmarks.support.steps import training_flops
from kernels import tuning
from kernels.dispatch import has_triton
from tests.commands import output_of
from tests.conftest import few_texts
from tests.corpora import make_corpus

# what jixu needs elsewhere and a machine with a GPU may not have
ABSENT = ["duckdb", "prefect", "jieba", "rjieba", "rensa", "opencc", "trafilatura", "cyclopts", "sqlalchemy"]
CEILINGS = Ceilings(flops=8e14, bytes=4e12)
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")


def later(seconds: float = 600) -> float:
    return time.monotonic() + seconds


def lines_of(folder: Path, command: str) -> dict[str, list[dict]]:
    """The records of a command, by kind."""
    found: dict[str, list[dict]] = {}
    for line in (folder / f"{command}.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["kind"], []).append(record)
    return found


def test_without_a_gpu_it_says_so_and_exits_with_2(tmp_path, capsys):
    assert gpu.main(["measure", "--out", str(tmp_path / "out")]) == 2
    assert "nothing measured" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_whole_models_need_torch_and_triton_alone(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")  # the interpreter needs numpy
    code = """
import sys
sys.modules |= dict.fromkeys(["numpy", "safetensors", "yaml", "pyarrow", "tokenizers", "pydantic"])
from benchmarks.gpu import __main__ as gpu, correctness, scale, workers
steps = [case for case in gpu.all_cases(scale.Scale()) if case.name.startswith("step ")]
assert len(steps) == 16, len(steps)
claim = correctness.Claim("add_layer_norm", "add_layer_norm", (3, 24))
(outcome,) = workers.run_tasks(correctness.tasks([claim]), float("inf"))
assert outcome == (0, None), outcome
"""
    output_of("-c", code)


def test_the_kernels_tests_need_neither_the_other_tests_conftest_nor_what_that_imports():
    code = """
import sys, pytest
sys.modules |= dict.fromkeys(["pydantic", "duckdb", "prefect", "jieba", "pyarrow", "tokenizers"])
arguments = ["--confcutdir=tests/kernels", "--collect-only", "-q", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*arguments, "tests/kernels"]))
"""
    output_of("-c", code)


def test_check_and_tune_checks_sweeps_and_times_small_on_a_cpu(tmp_path):
    assert gpu.main(["check-and-tune", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    found = lines_of(tmp_path, "check-and-tune")
    assert found["claims"][-1]["held"] == len(core_claims(Scale.here()))
    assert len(found["trial"]) == 4 and all(record["milliseconds"] > 0 for record in found["trial"])
    assert isinstance(tuning.read_table(Path(found["tiles"][0]["file"])), tuning.Table)
    assert found["result"] and all(r["timings"]["jixu tuned"] for r in found["result"])
    assert "| goal |" in (tmp_path / "check-and-tune.md").read_text("utf-8")


@pytest.mark.slow
def test_measure_runs_every_case_small_on_a_cpu(tmp_path, vocabulary_file):
    (shard,) = make_corpus(tmp_path, "general", few_texts(tmp_path)[0], vocabulary_file)
    out, absent = tmp_path / "out", tmp_path / "absent"
    absent.mkdir()
    for name in ABSENT:  # not importable, in other processes neither
        (absent / f"{name}.py").write_text("raise ModuleNotFoundError(__name__)", "utf-8")
    options = ["--device", "cpu", "--tiny", "--minutes", 60, "--out", out, "--shards", shard]
    output_of("-m", "benchmarks.gpu", "measure", *options, PYTHONPATH=str(absent))
    found = lines_of(out, "measure")
    assert {r["case"] for r in found["result"]} == {c.name for c in gpu.all_cases(Scale.here())}
    assert all("jixu" in r["timings"] for r in found["result"])
    assert found["trainer"][0]["tokens_per_second"] > 0 and found["profile"] and found["memory"]
    assert found["claims"][-1]["held"] == len(other_claims(Scale.here())) and found["races"]


def test_what_the_trainer_lacks_is_named_with_what_to_do(tmp_path, monkeypatch):
    assert "put some into build/carried" in gpu.trainer_lacks([])
    assert gpu.trainer_lacks([tmp_path]) is None
    monkeypatch.setattr(gpu, "TRAINER_NEEDS", ("torch", "no_such_package"))
    assert gpu.trainer_lacks([tmp_path]).startswith("no no_such_package here: `make carried` fetches")


def test_what_could_not_be_measured_and_a_wrong_claim_fail_the_command_unless_time_ran_out(tmp_path):
    report = Report(tmp_path, "measure")
    report.fail("profile", Failure("no time left", is_late=True), "base")
    assert not report.failures(everyone=False)
    report.fail("profile", Failure("RuntimeError: no"), "tiny")
    assert report.failures(everyone=False) == ["profile ('tiny',): RuntimeError: no"]
    failed = [record["failed"] for record in lines_of(tmp_path, "measure")["profile"]]
    assert failed == ["no time left", "RuntimeError: no"]
    claims = Report(tmp_path, "claims")
    claims.add_claim(Claim("bias_gelu", "bias_gelu", (3,)), Failure("AssertionError: out: error 1"))
    for name in ("step tiny", "bias_gelu tiny", "embed tiny"):
        claims.add(Result(name, {"jixu": Timing(1.0, 1, 1)}))
    assert claims.failures(everyone=False)
    # it marks results, those of before too, and hides none
    assert [result.wrong for result in claims.results] == [["bias_gelu"], ["bias_gelu"], []]
    claims.add_claim(Claim("embed", "embed", (3,)), Failure("AssertionError: y: error 1"))
    claims.summarise()
    assert [result.wrong for result in claims.results] == [["bias_gelu", "embed"], ["bias_gelu"], ["embed"]]
    ended = "its process ended with status -11"
    claims.add(Result("add_layer_norm tiny", absent={"jixu": ended}))
    assert f"add_layer_norm tiny, jixu: {ended}" in claims.failures(everyone=False)
    assert "WRONG: bias_gelu(3,): AssertionError" in (tmp_path / "claims.md").read_text("utf-8")
    assert len(lines_of(tmp_path, "claims")["result"]) == 4


@pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")
def test_a_triton_that_the_kernels_were_not_made_for_is_named(monkeypatch):
    assert tuning.table("sm_86") == tuning.table("sm_80") != tuning.table("sm_90")  # without wgmma
    assert "notice" not in machine()
    monkeypatch.setattr("triton.__version__", "3.2.0")
    assert "compiled with Triton" in str(machine()["notice"])


def test_ctrl_c_in_a_sweep_leaves_the_table_untouched(tmp_path, monkeypatch):
    file = tmp_path / tuning.table_file("interpreter")
    file.write_text("the table of before", encoding="utf-8")
    monkeypatch.setattr(gpu, "core_claims", lambda scale: [])
    monkeypatch.setattr(sweep, "check_trial", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["check-and-tune", "--device", "cpu", "--tiny", "--out", str(tmp_path)])
    assert file.read_text("utf-8") == "the table of before"


def test_the_sweep_keeps_what_is_faster_by_more_than_a_fiftieth(tmp_path, monkeypatch):
    scale = Scale.here()
    times = {"": 1.0, "forward": 0.985, "other": 0.5}
    monkeypatch.setattr(sweep, "check_trial", lambda *arguments: None)
    monkeypatch.setattr(sweep, "time_trial", lambda scale, trial: times[trial.part])
    here = Mock(call=lambda task, deadline: workers.call(task))  # in this process
    assert sweep.sweep(scale, later(), 0, here, lambda *note: None) == tuning.Table()
    times["forward"] = 0.9
    found = sweep.sweep(scale, later(), 0, here, lambda *note: None)
    assert len(found.attention) == 1 and found.loss
    attention, loss = (group[1] for group in sweep.trials(scale))
    assert found == attention.table.merged(loss.table)
    # the file is to replace the one of before
    for some in (attention.table, loss.table):
        monkeypatch.setenv("JIXU_TILES", str(sweep.write(some, scale, tmp_path).parent))
    assert tuning.measured("interpreter") == found


def test_a_candidate_with_one_wrong_row_is_refused(monkeypatch):
    right = torch.randn(2000, 3, 8)
    wrong = right.index_copy(0, torch.tensor([9]), -right[9:10])
    results = [lambda: [right], lambda: [wrong]]
    monkeypatch.setattr(sweep, "_passes", Mock(side_effect=results))
    trial = sweep.Trial((64, 128, False), "", tuning.Table())
    with pytest.raises(AssertionError, match="results differ by"):
        sweep.check_trial(Scale(), trial, tuning.Table())


@pytest.mark.parametrize("mix", ["full", "mixed"])
def test_lengths_fill_the_batch(mix):
    lengths = lengths_of(mix, 128, 65536)
    assert sum(lengths) == 65536 and max(lengths) <= 128 and min(lengths) > 0


def test_flops_of_a_step_are_those_counted_by_hand():
    config = AlbertConfig.preset("base")
    # 12 layers of 24 H^2 and attention's 4 L H, and the projection 2 E H
    layers = 65536 * (12 * (24 * 768**2 + 4 * 128 * 768) + 2 * 128 * 768)
    # less the last layer's output projection and feed-forward part, but for one token in 128
    spared = (65536 - 512) * (2 * 768**2 + 16 * 768**2)
    assert training_flops(config, [128] * 512, 0) == 3 * (layers - spared)


def test_attention_counts_two_products_forward_and_five_backward():
    cases = {case.name: case for case in gpu.all_cases(Scale())}
    forward = 128 * 2 * (2 * 512 * 512 * 64 * 12)
    assert cases["attention D=64 T=512 full both passes"].flops == 3.5 * forward


def test_the_table_gives_rate_share_idle_time_and_ratio_and_why_a_rival_is_absent():
    rival = Timing(2.0, 2, 2, rounds=(1.9, 2.1))
    timings = {"jixu": Timing(1.0, 1, 1, 2**20, host=0.5, busy=0.75), "rival": rival}
    result = Result("case", timings, {"other": "not installed"}, flops=1e12, bytes=1e9, wrong=["embed"])
    text = table([result], Ceilings(flops=2e15, bytes=4e12))
    assert "| case (WRONG: embed) | jixu | 1.000 | 0.50 | 25% | 1000.0 | 1000 | 50% | 1 |  |" in text
    assert "| rival | 2.000 (1.900 to 2.100) |  |  | 500.0 | 500 | 25% |  | 2.00x |" in text
    assert "| other | not installed |" in text


def test_every_claim_is_called_as_it_is_defined():
    for claim in [*core_claims(Scale()), *other_claims(Scale())]:
        function = getattr(importlib.import_module(claim.module), claim.function)
        inspect.signature(function).bind(None, *claim.arguments)


def holds(package) -> None:
    pass


def fails(package) -> None:
    raise AssertionError("a wrong number")


def ends_its_process(package) -> None:
    os._exit(7)


def never_ends(package) -> None:
    time.sleep(600)


@pytest.mark.slow
def test_a_task_that_ends_its_process_or_never_ends_spoils_no_other(monkeypatch):
    made = [Claim("embed", f.__name__, (), __name__) for f in (holds, ends_its_process, holds, fails, holds)]
    outcomes = dict(run_tasks(tasks(made), later(300), processes=2))
    reasons = {n: o.reason for n, o in outcomes.items() if isinstance(o, Failure)}
    assert reasons.keys() == {1, 3} and reasons[3] == "AssertionError: a wrong number"
    assert reasons[1].startswith("its process ended with status ")
    monkeypatch.setattr(workers.Worker, "GRACE_SECONDS", 0.0)
    late = tasks([Claim("embed", "never_ends", (), __name__)])
    assert dict(run_tasks(late, later(1), processes=1)) == {0: Failure("not done in time", is_late=True)}


def breaks_its_gpu() -> float:
    """As a rival does, which fails after others were timed."""
    torch.cuda.is_available = lambda: True
    torch.cuda.synchronize = Mock(side_effect=RuntimeError("CUDA error: device-side assert triggered"))
    return 1.5


def test_what_was_measured_before_the_gpu_failed_is_kept_and_the_next_task_gets_a_new_process():
    asked = [(breaks_its_gpu, ()), (torch.cuda.is_available, ())]
    assert dict(run_tasks(asked, later(), processes=1)) == {0: 1.5, 1: False}


def test_no_process_outlives_the_one_that_asks():
    code = (
        "import os, time; from benchmarks.gpu.workers import Worker; "
        "print(Worker('torch').call((os.getpid, ()), time.monotonic() + 100), flush=True); os._exit(0)"
    )
    # its output ends with the last process that may write to it
    assert output_of("-c", code).strip().isdecimal()


def test_what_fails_is_absent_or_comes_too_late_is_recorded_and_ends_nothing():
    def fails():
        raise ValueError("no such backend\nand more")

    turns = []
    runners = {"jixu": lambda: turns.append("jixu"), "varlen_attn": lambda: turns.append("varlen_attn")}
    runners |= {"rival": fails, "other": "not installed", "torch.compile": int}
    result = measure(Case("x", lambda: runners, of_kernels=True), later(10))  # too late for a compilation
    failure = "ValueError: no such backend"
    assert set(result.timings) == {"jixu", "varlen_attn"} and turns == ["jixu", "varlen_attn"] * 2
    assert result.absent == {"rival": failure, "other": "not installed", "torch.compile": "no time left"}
    assert measure(Case("x", fails), later()).absent == {"jixu": failure}
    assert dict(run_tasks([(holds, (None,))], later(-1))) == {0: Failure("no time left", is_late=True)}


def test_a_case_that_does_not_fit_the_memory_is_made_smaller_and_named(monkeypatch):
    def cases(scale):
        def fits():
            if scale.tokens > 100:
                raise torch.OutOfMemoryError("too much")

        return [Case(f"of {scale.tokens}", lambda: {"jixu": fits})]

    monkeypatch.setattr(session, "all_cases", cases)
    result = session.measure_case(Scale(tokens=256), 0, later(), None)
    assert result.case == "of 64 (too little memory for 256 tokens)" and result.timings


def test_a_step_is_timed_often_and_its_host_while_the_gpu_is_awake(monkeypatch):
    """Asleep, a GPU takes a thousand launches, and the host waits for more."""
    clock, asleep, steps = [0.0], [], []

    def step():
        steps.append(clock[0])
        clock[0] += 0.08 + (asleep.pop() if asleep else 0)

    cuda = Mock(is_available=lambda: True, memory_allocated=lambda: 1, max_memory_allocated=lambda: 5)
    cuda._sleep = lambda cycles: asleep.append(cycles / timing.CLOCK_HERTZ)
    cuda.Event.return_value.elapsed_time.return_value = 70.0
    monkeypatch.setattr(timing, "torch", Mock(cuda=cuda))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    first, found = timing.time_rounds(step, of_kernels=False, rounds=2)
    assert (found.milliseconds, found.host, found.peak_bytes) == (70, pytest.approx(80), 4)
    assert len(first.rounds) == 1 and found.rounds == (70, 70)
    assert len(steps) >= 2 * timing.LEAST_RUNS >= 20


def test_nvidia_smi_tells_the_driver_the_clocks_and_the_power_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "torch", Mock())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert timing.gpu_state() == {}
    told = "580.1, 700.00 W, 90.5 W, 1980 MHz, 345 MHz, 2619 MHz"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{told}'")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert timing.gpu_state() == dict(zip(timing.STATE, told.split(", "), strict=True))


def test_goals_are_met_missed_or_not_measured_for_a_reason():
    def result(case, timings, absent=(), **work):
        made = {name: Timing(ms, ms, ms, 2**20) for name, ms in timings.items()}
        return Result(case, made, dict(absent), **work)

    cases = {goal.claim: goal.case for goal in GOALS}
    assert set(cases.values()) <= {case.name for case in gpu.all_cases(Scale())}
    short, loss = cases["base T=128: 3 times transformers eager"], cases["mlm_loss: 1.5 times torch.compile"]
    launched = cases["tiny 4k tokens: busy for 95% of a step as a graph"]
    results = [
        result(short, {"jixu": 10, "transformers": 31}, {"transformers compiled": "no time left"}),
        result(cases["base T=512: MFU 50%"], {"jixu": 10}, flops=3.9e12),  # of 8e12 in 10 ms
        result("attention D=64 T=512 full both passes", {"jixu": 1, "jixu tuned": 0.8, "varlen_attn": 0.9}),
        result(loss, {"jixu": 1, "torch.compile": 2, "torch eager": 4}),
        Result(launched, {"jixu graph": Timing(1.0, 1, 1, busy=0.9)}),
    ]
    results[-2].timings["torch eager"].peak_bytes = 5 * 2**20
    verdicts = {v.claim: (v.met, v.detail) for v in judge(results, CEILINGS)}
    assert verdicts["base T=128: 3 times transformers eager"] == (True, "3.10 (jixu), goal 3")
    assert verdicts["base T=128: 1.3 times transformers compiled"][1] == "transformers compiled: no time left"
    assert verdicts["base T=512: MFU 50%"] == (False, "0.49 (jixu), goal 0.5")
    assert verdicts["large T=512: MFU 55%"][0] is None
    tuned = verdicts["attention D=64 T=512 full both passes: the best of FlashAttention-2 and cuDNN"]
    assert tuned == (True, "0.90 (jixu), 1.12 (jixu tuned), goal 1")
    memory = verdicts["mlm_loss: a quarter of the memory of torch, which stores logits"]
    assert memory == (True, "5.00 (jixu), goal 4")
    assert verdicts["tiny 4k tokens: busy for 95% of a step as a graph"][1] == "0.90 (jixu graph), goal 0.95"
    assert "| base T=512: MFU 50% | missed | 0.49 (jixu), goal 0.5 |" in goals_table(judge(results, CEILINGS))
    assert all(v.met is None for v in judge(results, None))
    wrong = judge([replace(result, wrong=["mlm_loss"]) for result in results], CEILINGS)
    assert not any(v.met for v in wrong) and "5.00 (jixu), goal 4, WRONG RESULTS" in goals_table(wrong)
