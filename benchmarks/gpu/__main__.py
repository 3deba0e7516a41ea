"""Check, tune and measure the kernels and whole training steps on one NVIDIA GPU, in two commands.

    python -m benchmarks.gpu check-and-tune --out DIR [--minutes 8.5]
    python -m benchmarks.gpu measure --out DIR [--shards FILE ...] [--minutes 8.5]

check-and-tune: the core claims about the kernels, a sweep of tile sizes, whose table it writes into DIR, and
the cases of the goals with built-in and tuned tiles. measure: the trainer on shards, memory, a profile, the
cases of the goals, the trainer's CUDA graphs beside single launches, the other steps and kernels beside their
rivals, the other claims, and races where compute-sanitizer is installed.

Needs torch, triton and this repository; the trainer also shards and a few packages. Both may lie in
build/carried, which `make carried` begins: take it along to a machine without a network. Rivals that are
installed (transformers, flash-attn, Liger-Kernel) take part, the others are named as absent. Each figure is
written to DIR as it is measured. `--device cpu --tiny` tries every line on a CPU. Exit status: 0 all is
right, 1 a result is wrong or a case failed, 2 there is no GPU that can run it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

import kernels
from benchmarks.gpu.correctness import core_claims, other_claims, races
from benchmarks.gpu.goals import goals_table, judge, of_goals
from benchmarks.gpu.graphs import CASES, check_graphs
from benchmarks.gpu.model import memory, profile
from benchmarks.gpu.report import Report
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.session import Session, all_cases
from benchmarks.gpu.sweep import sweep, write
from benchmarks.gpu.trainer import train
from kernels.dispatch import missing_triton, runs_kernels

CARRIED = Path(__file__).parents[2] / "build" / "carried"
TRAINER_NEEDS = ("google", "pydantic", "pyarrow", "safetensors", "tokenizers", "tqdm")
CHECKING, SWEEPING = 0.12, 0.45  # shares of the minutes, at most


def check_and_tune(session: Session) -> None:
    scale, report = session.scale, session.report
    session.check(core_claims(scale), session.share(CHECKING), session.processes)
    session.ceilings()
    found = sweep(scale, session.share(SWEEPING), session.processes, session.worker, report.note)
    tiles = write(found, scale, report.folder, measured_on=report.machine)
    report.show("tiles", {"file": str(tiles), "entries": len(found.attention) + (found.loss is not None)})
    cases = of_goals(all_cases(scale))
    session.measure(cases or all_cases(scale)[:2], tiles)


def measure_all(session: Session) -> None:
    scale, report, options = session.scale, session.report, session.options
    session.ceilings()
    models = ("tiny",) if scale.is_small else ("tiny", "base", "large")
    lacking = trainer_lacks(options.shards)
    if lacking:
        report.show("trainer", {"left out": lacking})
    for name, tokens in product(() if lacking else models, (512,) if scale.is_small else (4096, 32768)):
        session.run("trainer", train, tuple(options.shards), name, tokens)
    for name in models if scale.is_small else ("large", "bert-large"):
        session.run("memory", memory, name)
    for name in models:
        session.run("profile", profile, name)
    goals = of_goals(all_cases(scale))
    session.measure(goals)
    for case in () if lacking else CASES:
        session.run("graphs", check_graphs, tuple(options.shards), case)
    done = {case.name for case in goals}
    session.measure([case for case in all_cases(scale) if case.name not in done])
    session.check(other_claims(scale), session.end, min(session.processes, 4))
    session.run("races", races)


def trainer_lacks(shards: Sequence[Path]) -> str | None:
    """Say what the trainer needs and this machine does not have."""
    missing = [name for name in TRAINER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        return f"no {', '.join(missing)} here: `make carried` fetches what is missing into build/carried"
    return None if shards else "no shards to train on: give --shards, or put some into build/carried"


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
