"""What `benchmarks.gpu` found so far: lines of JSON as it is found, and a summary in Markdown."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.correctness import Claim
from benchmarks.gpu.goals import goals_table, judge
from benchmarks.gpu.timing import Ceilings, Result, gpu_state, table
from benchmarks.gpu.workers import ENDED, Failure
from benchmarks.support import results
from kernels.dispatch import has_triton

COMPILED_WITH = ("3.6", "3.7", "3.9")  # versions of Triton that `benchmarks.compile_only` was run with


def machine() -> dict[str, object]:
    """Describe the machine."""
    facts = {**results.machine(), "torch": torch.__version__}
    if has_triton:
        import triton

        facts["triton"] = triton.__version__
        if not triton.__version__.startswith(COMPILED_WITH):
            facts["notice"] = f"the kernels were compiled with Triton {', '.join(COMPILED_WITH)} before"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        facts |= {
            "gpu": properties.name,
            "sm": f"{properties.major}{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(total / 2**30),
            "free_gib": round(free / 2**30),
            "cuda": torch.version.cuda,
            **gpu_state(),
        }
    return facts


@dataclass
class Report:
    """All results of a command, in the files NAME.jsonl and NAME.md of a folder."""

    folder: Path
    name: str
    start: float = field(default_factory=time.monotonic)
    ceilings: Ceilings | None = None
    held: int = 0  # claims about the kernels
    wrong: list[tuple[str, str]] = field(default_factory=list)  # the kernel, and which claim failed how
    unchecked: list[str] = field(default_factory=list)  # claims for which time ran out
    results: list[Result] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # further lines of the summary
    failed: list[str] = field(default_factory=list)  # what else was to be measured
    machine: dict[str, object] = field(default_factory=machine)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.name}.jsonl").unlink(missing_ok=True)
        self.note("machine", self.machine)

    @property
    def seconds(self) -> int:
        return round(time.monotonic() - self.start)

    def note(self, kind: str, record: dict[str, Any]) -> None:
        """Write a line at once: a command that is cut off loses nothing."""
        # of a file its name alone: where it lay on that machine helps nobody
        record = {"kind": kind, "seconds": self.seconds, **record}
        line = json.dumps(record, default=lambda x: x.name if isinstance(x, Path) else str(x))
        with (self.folder / f"{self.name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(line[:400], flush=True)

    def show(self, kind: str, record: dict[str, Any]) -> None:
        """Note a record that the summary shows too."""
        self.note(kind, record)
        words = ", ".join(f"{name} {value}" for name, value in record.items())
        self.others.append(f"{kind}: {words}")
        self.summarise()

    def fail(self, kind: str, failure: Failure, *arguments: object) -> None:
        """Show why something was not measured."""
        self.show(kind, {"arguments": arguments, "failed": failure.reason})
        if not failure.is_late:
            self.failed.append(f"{kind} {arguments}: {failure.reason}")

    def add_claim(self, claim: Claim, outcome: object) -> None:
        """Count a claim, and note one that does not hold."""
        if not isinstance(outcome, Failure):
            self.held += 1
            return
        words = f"{claim}: {outcome.reason}"
        self.note("claim", {"unchecked" if outcome.is_late else "wrong": words})
        if outcome.is_late:
            self.unchecked.append(words)
        else:
            self.wrong.append((claim.kernel, words))

    def add(self, result: Result) -> None:
        """Note a case."""
        self.results.append(result)
        self._mark()
        self.note("result", asdict(result))
        self.summarise()

    def _mark(self) -> None:
        """Mark the cases whose kernels gave wrong results, before or since."""
        wrong = {kernel for kernel, _ in self.wrong}
        for result in self.results:
            own = wrong if result.case.startswith("step") else wrong & {result.case.split()[0]}
            result.wrong = sorted(own)

    def summarise(self) -> None:
        """Write the summary."""
        self._mark()
        words = [
            f"# {self.name} on {self.machine.get('gpu', 'a CPU: numbers of no meaning')}",
            ", ".join(f"{name} {value}" for name, value in self.machine.items())
            + f"; {self.seconds} seconds",
            f"{self.ceilings.flops / 1e12:.0f} TFLOP/s and {self.ceilings.bytes / 1e12:.2f} TB/s at best"
            if self.ceilings
            else "ceilings not measured",
            f"{self.held} claims about the kernels hold, {len(self.wrong)} do not",
            *(f"WRONG: {line}" for _kernel, line in self.wrong),
            *(f"unchecked: {line}" for line in self.unchecked),
            *self.others,
            goals_table(judge(self.results, self.ceilings)),
            "Kernels: time on the GPU alone. Steps: with the host's part in them.",
            table(self.results, self.ceilings),
        ]
        (self.folder / f"{self.name}.md").write_text("\n\n".join(words), encoding="utf-8")

    def failures(self, *, everyone: bool) -> list[str]:
        """Name the claims that are wrong and where jixu (with `everyone`, any runner) failed."""
        return [*self.failed, *(line for _, line in self.wrong)] + [
            f"{result.case}, {name}: {why}"
            for result in self.results
            for name, why in result.absent.items()
            if ("Error" in why or ENDED in why) and (everyone or name.startswith("jixu"))
        ]
