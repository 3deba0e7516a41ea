"""Timing, memory and ceilings on a GPU, and the records they go into."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One piece of work: who does it, and the least it takes.

    `runners` are made when the case is run, so that only one case's tensors live at a time; a runner that is
    a text says why it is not there, and `skipped` why none is. `flops` and `bytes` are of the work itself,
    not of any implementation.
    """

    name: str
    runners: Callable[[], dict[str, Run | str]]
    flops: float = 0.0
    bytes: float = 0.0
    tokens: int = 0
    skipped: str = ""


@dataclass
class Timing:
    """Milliseconds (median, 20% and 80% quantile) and the memory a run takes beyond what was there."""

    milliseconds: float
    low: float
    high: float
    peak_bytes: int


@dataclass
class Result:
    case: str
    timings: dict[str, Timing] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Ceilings:
    """What this GPU does at best, measured here: bf16 products of random 8192 matrices, copies in and out."""

    flops: float  # a second
    bytes: float  # a second, read and written


def time_run(run: Run, seconds: float = 0.15) -> Timing:
    """Median of repeated runs on the GPU with a cold L2 (on a CPU, where only the code is tried, of one)."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run()
        elapsed = (time.perf_counter() - start) * 1e3
        return Timing(elapsed, elapsed, elapsed, 0)
    from triton.testing import do_bench

    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    median, low, high = do_bench(run, warmup=25, rep=seconds * 1e3, quantiles=[0.5, 0.2, 0.8])
    return Timing(median, low, high, peak)


def measure(case: Case, deadline: float) -> Result:
    """Every runner of a case, one after the other; what fails or comes too late says so."""
    result = Result(case.name, flops=case.flops, bytes=case.bytes, tokens=case.tokens)
    if case.skipped:
        result.absent["jixu"] = case.skipped
        return result
    for name, run in case.runners().items():
        if isinstance(run, str):
            result.absent[name] = run
        elif time.monotonic() > deadline:
            result.absent[name] = "no time left"
        else:
            try:
                result.timings[name] = time_run(run)
            except Exception as error:  # a rival that cannot run is a finding, not the end of the benchmark
                result.absent[name] = (
                    f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                )
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    return result


def measure_ceilings() -> Ceilings:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = statistics.median(time_run(lambda: a @ b).milliseconds for _ in range(3))
    source = torch.empty(2**32, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = statistics.median(time_run(lambda: target.copy_(source)).milliseconds for _ in range(3))
    return Ceilings(2 * 8192**3 / product * 1e3, 2 * 2**32 / copy * 1e3)


def forward_backward(forward: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Run:
    """A run of both passes, with a random gradient made once."""
    gradient: list[torch.Tensor] = []

    def run() -> None:
        out = forward()
        if not gradient:
            gradient.append(torch.randn_like(out))
        torch.autograd.grad(out, inputs, gradient[0])

    return run


def table(results: list[Result], ceilings: Ceilings | None) -> str:
    """Markdown: a row for every runner, with its rate, its share of the ceilings and its ratio to jixu's."""
    lines = [
        "| case | who | ms | TFLOP/s | GB/s | of the roofline | peak MiB | jixu is |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        ours = result.timings.get("jixu")
        for name, timing in result.timings.items():
            rates = [x / timing.milliseconds * 1e3 for x in (result.flops, result.bytes)]
            floor = max(result.flops / ceilings.flops, result.bytes / ceilings.bytes) if ceilings else 0.0
            share = f"{floor / timing.milliseconds * 1e3:.0%}" if floor else ""
            ratio = f"{timing.milliseconds / ours.milliseconds:.2f}x" if ours and name != "jixu" else ""
            tokens = f" ({result.tokens / timing.milliseconds * 1e3:,.0f} tokens/s)" if result.tokens else ""
            lines.append(
                f"| {result.case} | {name}{tokens} | {timing.milliseconds:.3f} | {rates[0] / 1e12:.1f} "
                f"| {rates[1] / 1e9:.0f} | {share} | {timing.peak_bytes / 2**20:.0f} | {ratio} |"
            )
        lines += [
            f"| {result.case} | {name} | {reason} | | | | | |" for name, reason in result.absent.items()
        ]
    return "\n".join(lines) + "\n"
