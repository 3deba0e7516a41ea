"""One command of `benchmarks.gpu`: what it runs, in which process, and until when.

Timings are taken one after another in one other process, which is replaced if it breaks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.gpu.cases import kernel_cases
from benchmarks.gpu.correctness import Claim, tasks
from benchmarks.gpu.model import model_cases
from benchmarks.gpu.report import Report
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import Case, Result, measure, measure_ceilings
from benchmarks.gpu.workers import Failure, Worker, run_tasks

PROCESSES = max(2, (os.cpu_count() or 2) - 2)  # that compile and check side by side
SMALLER = (1, 2, 4, 8)  # a case that does not fit the memory is tried with fewer tokens


def all_cases(scale: Scale) -> list[Case]:
    """List whole models and kernels."""
    return [*model_cases(scale), *kernel_cases(scale)]


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
        self.worker = Worker(scale.kernels)

    def share(self, of_all: float) -> float:
        """When a share of all the command's time will have passed from now on."""
        return min(time.monotonic() + 60 * self.options.minutes * of_all, self.end)

    def run(self, kind: str, function: Callable[..., dict[str, object]], *arguments: object) -> None:
        """Note what a function measures, or why it does not."""
        outcome = self.worker.call((function, (self.scale, *arguments)), self.end)
        if isinstance(outcome, Failure):
            self.report.fail(kind, outcome, *arguments)
        else:
            self.report.show(kind, outcome)

    def check(self, claims: Sequence[Claim], deadline: float, processes: int) -> None:
        for number, outcome in run_tasks(
            tasks(list(claims)), deadline, processes=processes, choice=self.scale.checked
        ):
            self.report.add_claim(claims[number], outcome)
        report = self.report
        report.note("claims", {"held": report.held, "wrong": report.wrong, "unchecked": report.unchecked})
        self.report.summarise()

    def measure(self, cases: Sequence[Case], tiles: Path | None = None) -> None:
        numbers = {case.name: number for number, case in enumerate(all_cases(self.scale))}
        for case in cases:
            task = (measure_case, (self.scale, numbers[case.name], self.end, tiles))
            outcome = self.worker.call(task, self.end)
            failed = isinstance(outcome, Failure)
            self.report.add(Result(case.name, absent={"jixu": outcome.reason}) if failed else outcome)

    def ceilings(self) -> None:
        small = (64, 2**16) if self.scale.is_small else ()
        outcome = self.worker.call((measure_ceilings, (self.scale.device, *small)), self.end)
        if isinstance(outcome, Failure):
            self.report.fail("ceilings", outcome)
        else:
            self.report.ceilings = outcome
            self.report.note("ceilings", asdict(outcome))
