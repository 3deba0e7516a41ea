"""Check, tune and measure the kernels and whole training steps on one NVIDIA GPU, in two commands.

    python -m benchmarks.gpu check-and-tune --out DIR [--minutes 8.5]
    python -m benchmarks.gpu measure --out DIR [--shards FILE ...] [--tiles FILE] [--minutes 8.5]

check-and-tune: the core claims about the kernels, a sweep of tile sizes, whose table it writes into DIR, and
the cases of the goals with built-in and tuned tiles. measure: steps with the host's time, the trainer on
shards, a profile, memory, every kernel beside its rivals, the other claims, and races where compute-sanitizer
is installed.

Needs torch, triton and this repository; the trainer also shards and a few packages. Both may lie in
build/carried, which `make carried` begins: take it along to a machine without a network. Rivals that are
installed (transformers, flash-attn, Liger-Kernel) take part, the others are named as absent. Each figure is
written to DIR as it is measured. `--device cpu --tiny` tries every line on a CPU. Exit status: 0 all is
right, 1 a result is wrong or a case failed, 2 there is no GPU that can run it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import torch

import kernels
from benchmarks.gpu.cases import kernel_cases
from benchmarks.gpu.correctness import Claim, core_claims, other_claims, tasks
from benchmarks.gpu.goals import goals_table, judge, of_goals
from benchmarks.gpu.model import host_cases, memory, model_cases, profile
from benchmarks.gpu.report import Report
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.sweep import sweep, write
from benchmarks.gpu.timing import Case, Result, measure, measure_ceilings
from benchmarks.gpu.trainer import train
from benchmarks.gpu.workers import Failure, run_tasks
from kernels.dispatch import missing_triton, runs_kernels

CARRIED = Path(__file__).parents[2] / "build" / "carried"
TRAINER_NEEDS = ("pydantic", "pyarrow", "safetensors", "tokenizers", "tqdm")
CHECKING, SWEEPING = 60.0, 240.0  # seconds at most
PROCESSES = max(2, (os.cpu_count() or 2) - 2)  # that compile and check side by side
SMALLER = (1, 2, 4, 8)  # a case that does not fit the memory is tried with fewer tokens


def all_cases(scale: Scale) -> list[Case]:
    """List whole models and kernels."""
    return [*host_cases(scale), *model_cases(scale), *kernel_cases(scale)]


def measure_case(scale: Scale, number: int, deadline: float, tiles: Path | None) -> Result:
    """Measure one of all cases, with as many tokens as fit the memory."""
    for smaller in SMALLER:
        case = all_cases(replace(scale, tokens=scale.tokens // smaller))[number]
        result = measure(case, deadline, tiles)
        if "OutOfMemory" not in result.absent.get("jixu", ""):
            break
    if smaller > 1:
        result.case += f" (too little memory for {scale.tokens} tokens)"
    return result


class Session:
    """One command: its scale, its report and the time that it has left."""

    def __init__(self, scale: Scale, report: Report, options: argparse.Namespace):
        self.scale, self.report, self.options = scale, report, options
        self.end = report.start + 60 * options.minutes
        self.processes = 0 if scale.is_small else PROCESSES

    def run(self, kind: str, function: Callable[..., dict[str, object]], *arguments: object) -> None:
        """Note what a function measures in a process of its own, or why it does not."""
        processes = min(self.processes, 1)
        task = (function, (self.scale, *arguments))
        for _, outcome in run_tasks([task], self.end, processes=processes, choice=self.scale.kernels):
            if isinstance(outcome, Failure):
                self.report.fail(kind, outcome, *arguments)
            else:
                self.report.show(kind, outcome)

    def check(self, claims: Sequence[Claim], deadline: float, processes: int) -> None:
        for number, outcome in run_tasks(
            tasks(list(claims)), deadline, processes=processes, choice=self.scale.checked
        ):
            became = self.report.correctness.add(claims[number], outcome)
            if became != "held":
                self.report.note("claim", {"claim": str(claims[number]), became: str(outcome)})
        self.report.note("claims", asdict(self.report.correctness))
        self.report.summarise()

    def measure(self, cases: Sequence[Case], tiles: Path | None = None) -> None:
        """Measure cases one after another, in a process that is replaced if it breaks."""
        numbers = {case.name: number for number, case in enumerate(all_cases(self.scale))}
        work = [(measure_case, (self.scale, numbers[case.name], self.end, tiles)) for case in cases]
        processes = min(self.processes, 1)
        for number, outcome in run_tasks(work, self.end, processes=processes, choice=self.scale.kernels):
            failed = isinstance(outcome, Failure)
            result = Result(cases[number].name, absent={"jixu": outcome.reason}) if failed else outcome
            self.report.add(result)

    def ceilings(self) -> None:
        small = (64, 2**16) if self.scale.is_small else ()
        self.report.ceilings = measure_ceilings(self.scale.device, *small)
        self.report.note("ceilings", asdict(self.report.ceilings))


def check_and_tune(session: Session) -> None:
    scale, report = session.scale, session.report
    session.check(core_claims(scale), report.start + CHECKING, session.processes)
    session.ceilings()
    until = min(time.monotonic() + SWEEPING, session.end)
    found = sweep(scale, until, session.processes, report.note)
    tiles = write(found, scale, report.folder, measured_on=report.name)
    report.show("tiles", {"file": str(tiles), "entries": len(found.attention) + (found.loss is not None)})
    cases = of_goals(all_cases(scale))
    session.measure(cases or all_cases(scale)[:2], tiles)


def measure_all(session: Session) -> None:
    scale, report, options = session.scale, session.report, session.options
    session.ceilings()
    session.measure(list(host_cases(scale)))
    models = ("tiny",) if scale.is_small else ("tiny", "base", "large")
    lacking = trainer_lacks(options.shards)
    if lacking:
        report.show("trainer", {"left out": lacking})
    for name, tokens in product(() if lacking else models, (512,) if scale.is_small else (4096, 32768)):
        session.run("trainer", train, tuple(options.shards), name, tokens)
    for name in models:
        session.run("profile", profile, name)
    for name in models if scale.is_small else ("large", "bert-large"):
        session.run("memory", memory, name)
    session.measure([case for case in all_cases(scale) if not case.name.startswith("step")])
    session.check(other_claims(scale), session.end, min(session.processes, 4))
    session.run("races", races)
    session.measure(list(model_cases(scale)))


def trainer_lacks(shards: Sequence[Path]) -> str | None:
    """Say what the trainer needs and this machine does not have."""
    missing = [name for name in TRAINER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        return f"no {', '.join(missing)} here: `make carried` fetches what is missing into build/carried"
    return None if shards else "no shards to train on: give --shards, or put some into build/carried"


def races(scale: Scale) -> dict[str, object]:
    """Run small claims of every kernel under compute-sanitizer's racecheck, where it is installed."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {"racecheck": "compute-sanitizer is not installed"}
    code = "from benchmarks.gpu import correctness as c; [c.make(claim) for claim in c.small_claims()]"
    command = [sanitizer, "--tool", "racecheck", "--error-exitcode", "9", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = " | ".join((done.stdout + done.stderr)[-1000:].split("\n"))
    if done.returncode:
        raise RuntimeError(f"racecheck ended with {done.returncode}: {said}")
    return {"racecheck": said}


def refusal(options: argparse.Namespace) -> str | None:
    """Say why nothing can be measured here."""
    if options.device == "cpu":
        return None if options.tiny else "--device cpu is to try the benchmark: it needs --tiny"
    if missing_triton() or not torch.cuda.is_available():
        what = missing_triton() or "no CUDA device here: run this on a machine with an NVIDIA GPU"
        return f"nothing measured, {what}"
    if not runs_kernels(torch.device("cuda", 0)):
        return f"{torch.cuda.get_device_name(0)} does not run the kernels: they need NVIDIA's sm_80 or newer"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = {"check-and-tune": check_and_tune, "measure": measure_all}
    parser.add_argument("command", choices=commands)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for what is found")
    parser.add_argument("--minutes", type=float, default=8.5, help="after which nothing new begins [8.5]")
    shards = sorted(CARRIED.glob("*.parquet"))
    parser.add_argument("--shards", type=Path, nargs="*", default=shards, help="to train on, in measure")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small cases, for a CPU")
    options = parser.parse_args(arguments)
    sys.path.append(str(CARRIED))
    if why := refusal(options):
        print(why, file=sys.stderr)
        return 2
    scale = Scale.here()
    kernels.use(scale.kernels)  # type: ignore[arg-type]
    report = Report(options.out, options.command)
    try:
        commands[options.command](Session(scale, report, options))
    finally:
        kernels.use("auto")
        report.summarise()
    print(goals_table(judge(report.results, report.ceilings)))
    failures = report.failures(everyone=scale.is_small)
    for line in failures:
        print(f"FAILED {line}")
    print(f"{len(report.results)} cases, {report.seconds} s; {report.folder / options.command}.md")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
