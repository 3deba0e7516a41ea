"""Measure the kernels and whole training steps on one NVIDIA GPU, after checking their results.

    python -m benchmarks.gpu [--minutes 7] [--only WORD] [--dry-run] [--smoke]

Needs torch, triton and this repository. Rivals that are installed (transformers, flash-attn, Liger-Kernel)
take part, the others are named as absent. Correctness first: nothing is timed where a result is wrong. Then
the cases of the goals, then the others until the minutes are over; what is left out is named. Writes
benchmarks/results/gpu.json and gpu.md after every case. `--dry-run` lists the work; `--smoke` runs all of it
once on a CPU at a small size, on torch's path or with TRITON_INTERPRET=1 on the kernels, to try the benchmark
itself. Exit status: 0 all is right, 1 a result is wrong or a case failed, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import kernels
from benchmarks.gpu.cases import kernel_cases
from benchmarks.gpu.correctness import Correctness, check, claims, small_claims
from benchmarks.gpu.goals import by_importance, goals_table, judge
from benchmarks.gpu.model import model_cases
from benchmarks.gpu.optimizer import optimizer_cases
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import Case, Ceilings, Result, attempt, measure, measure_ceilings, table
from kernels.dispatch import has_triton

RESULTS = Path(__file__).parents[1] / "results"


CHECKING = 1 / 3  # share of the time that correctness may take
PROCESSES = 10  # for correctness, on a node of 16 cores


def machine() -> dict[str, object]:
    """Describe the machine."""
    facts: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    if has_triton:
        import triton

        facts["triton"] = triton.__version__
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30),
            "cuda": torch.version.cuda,
        }
    return facts


@dataclass
class Report:
    """All results so far."""

    start: float = field(default_factory=time.monotonic)
    ceilings: Ceilings | str = "not measured"
    correctness: Correctness = field(default_factory=Correctness)
    results: list[Result] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write gpu.json and gpu.md."""
        ceilings = self.ceilings if isinstance(self.ceilings, Ceilings) else None
        verdicts, seconds = judge(self.results, ceilings), round(time.monotonic() - self.start)
        content = {
            "machine": machine(),
            "seconds": seconds,
            "ceilings": asdict(ceilings) if ceilings else self.ceilings,
            "correctness": asdict(self.correctness),
            "goals": [asdict(verdict) for verdict in verdicts],
            "results": [asdict(result) for result in self.results],
        }
        correctness = self.correctness
        late = [r.case for r in self.results if r.absent.get("jixu") == "no time left"]
        words = [
            f"# {machine().get('gpu', 'a CPU: numbers of no meaning')}",
            ", ".join(f"{name} {value}" for name, value in machine().items()) + f"; {seconds} seconds",
            f"{ceilings.flops / 1e12:.0f} TFLOP/s and {ceilings.bytes / 1e12:.2f} TB/s at best"
            if ceilings
            else f"ceilings: {self.ceilings}",
            f"{correctness.held} claims about the kernels hold, {len(correctness.wrong)} do not",
            *(f"WRONG: {line}" for _kernel, line in correctness.wrong),
            *(
                [f"unchecked for lack of time: {'; '.join(correctness.unchecked)}"]
                if correctness.unchecked
                else []
            ),
            *([f"left out for lack of time: {'; '.join(late)}"] if late else []),
            goals_table(verdicts),
            "Kernels: time on the GPU alone. Steps and optimisers: with the host's part in them.",
            table(self.results, ceilings),
        ]
        folder.mkdir(exist_ok=True)
        (folder / "gpu.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text("\n\n".join(words), encoding="utf-8")


def all_cases(scale: Scale) -> list[Case]:
    """List whole models, kernels and optimisers, those of the goals first."""
    return by_importance([*optimizer_cases(scale), *model_cases(scale), *kernel_cases(scale)])


def run(scale: Scale, minutes: float, only: str, folder: Path) -> Report:
    """Run the benchmark and write the growing report to the folder."""
    report = Report()
    end = report.start + 60 * minutes
    on_gpu = scale.device == "cuda"
    kernels.use(scale.kernels)
    try:
        if scale.kernels == "triton":
            grid = claims() if on_gpu else small_claims()
            deadline = report.start + 60 * minutes * CHECKING
            report.correctness = check(grid, deadline, PROCESSES if on_gpu else 0)
            print(f"correctness: {report.correctness}", flush=True)
        report.ceilings = attempt(measure_ceilings, scale.device, *(() if on_gpu else (64, 2**16)))
        print(f"ceilings: {report.ceilings}", flush=True)
        wrong = {kernel for kernel, _error in report.correctness.wrong}
        for case in all_cases(scale):
            if only not in case.name:
                continue
            if wrong & {case.name.split()[0]} or wrong and case.name.startswith("step"):
                result = Result(case.name, absent={"jixu": "not timed: its kernels gave wrong results"})
            else:
                result = measure(case, end)
            report.results.append(result)
            report.write(folder)
            timings = {name: round(t.milliseconds, 3) for name, t in result.timings.items()}
            print(f"{case.name}: {timings}; absent {result.absent}", flush=True)
            attempt(_forget, on_gpu)
    finally:
        kernels.use("auto")
    return report


def _forget(on_gpu: bool) -> None:
    """Free a case's memory and compiled code."""
    torch._dynamo.reset()
    if on_gpu:
        torch.cuda.empty_cache()


def status(report: Report, everyone: bool) -> int:
    """Return 1 if a claim is wrong, or jixu (with `everyone`, any runner) failed in a case, else 0."""
    failed = [
        f"{result.case}, {name}: {why}"
        for result in report.results
        for name, why in result.absent.items()
        if "Error" in why and (everyone or name == "jixu")
    ]
    for line in failed:
        print(f"FAILED {line}")
    return 1 if failed or report.correctness.wrong else 0


def describe(case: Case) -> str:
    return f"{case.name:52} {case.flops / 1e9:10.1f} GFLOP {case.bytes / 1e6:9.1f} MB"


def smoke(only: str) -> int:
    """Run everything once on a CPU at a small size, to test the benchmark itself."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    scale = Scale(device="cpu", tokens=512, vocabulary=500, kernels="triton" if interpreted else "auto")
    with tempfile.TemporaryDirectory() as folder:
        return status(run(scale, 60, only, Path(folder)), everyone=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=7, help="after which nothing new is timed (default 7)"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name has this word")
    parser.add_argument("--dry-run", action="store_true", help="list the work")
    parser.add_argument("--smoke", action="store_true", help="try the benchmark on a CPU")
    options = parser.parse_args(arguments)
    if options.dry_run:
        for case in all_cases(Scale()):
            if options.only in case.name:
                print(describe(case))
        return 0
    if options.smoke:
        return smoke(options.only)
    if not torch.cuda.is_available() or not has_triton:
        what = "no CUDA device" if has_triton else "no triton"
        print(f"{what} here, nothing measured: run this on a machine with an NVIDIA GPU", file=sys.stderr)
        return 2
    report = run(Scale(), options.minutes, options.only, RESULTS)
    print(
        goals_table(judge(report.results, report.ceilings if isinstance(report.ceilings, Ceilings) else None))
    )
    print(f"{len(report.results)} cases; {RESULTS / 'gpu.md'}")
    return status(report, everyone=False)


if __name__ == "__main__":
    sys.exit(main())
