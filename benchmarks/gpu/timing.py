"""Timing, memory and ceilings on a GPU, and the records they go into."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.gpu.workers import LATE, reason
from kernels import tuning

Run = Callable[[], object]
# runners that compile before they run, and the seconds that may take (an H200's host took 75): not begun when
# fewer are left, as a case that does not end in time is lost
COMPILE_SECONDS = {"torch.compile": 20.0, "transformers compiled": 75.0}
CLOCK_HERTZ = 2e9  # about the highest of any GPU so far
L2_BYTES = 2**28  # more than any GPU's L2
LEAST_RUNS = 10  # for a median and its spread
TUNED = "jixu tuned"  # jixu with the tiles that the sweep found


@dataclass(frozen=True)
class Case:
    """One piece of work: who does it, and the least it takes.

    `runners` are made when the case is run, so that only one case's tensors live at a time; a runner that is
    a text says why it is not there. `flops` and `bytes` are of the work itself, not of any implementation.
    A case `of_kernels` is timed on the GPU alone, without the host's part in launching.
    """

    name: str
    runners: Callable[[], dict[str, Run | str]]
    flops: float = 0.0
    bytes: float = 0.0
    tokens: int = 0
    of_kernels: bool = False


@dataclass
class Timing:
    """Milliseconds (median, 20% and 80% quantile) and a run's peak memory beyond its start.

    Of whole steps also the host's milliseconds and those the GPU was busy for.
    """

    milliseconds: float
    low: float
    high: float
    peak_bytes: int = 0
    host: float | None = None
    busy: float | None = None

    @property
    def idle(self) -> float | None:
        """Share of the time that the GPU waits for the host."""
        return None if self.busy is None else max(0.0, 1 - self.busy / self.milliseconds)


@dataclass
class Result:
    case: str
    timings: dict[str, Timing] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)  # kernels with a claim that does not hold


@dataclass(frozen=True)
class Ceilings:
    """The measured best of this GPU: bf16 products of random 8192 matrices, copies in and out."""

    flops: float  # a second
    bytes: float  # a second, read and written


def time_run(run: Run, of_kernels: bool = True, seconds: float = 0.15) -> Timing:
    """Time repeated runs on the GPU with a cold L2; on a CPU, where only the code is tested, one run."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run()
        elapsed = (time.perf_counter() - start) * 1e3
        return Timing(elapsed, elapsed, elapsed, 0, *((None, None) if of_kernels else (elapsed, elapsed)))
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    host, whole = map(statistics.median, zip(*(_once(run) for _ in range(3)), strict=True))
    count = max(LEAST_RUNS, min(200, int(seconds / (whole + 2 * host))))
    # a step sleeps for longer than it runs, and its kernels' time hardly varies
    busy = _times(run, count if of_kernels else LEAST_RUNS // 2, asleep=2 * host)
    if of_kernels:
        return Timing(*_quantiles(busy), peak)
    return Timing(*_quantiles(_times(run, count)), peak, 1e3 * host, statistics.median(busy))


def _quantiles(times: list[float]) -> tuple[float, float, float]:
    times = sorted(times)
    return statistics.median(times), times[len(times) // 5], times[len(times) * 4 // 5]


def _once(run: Run) -> tuple[float, float]:
    """The seconds in which the host launches a run, and in which it is done, on a GPU that has nothing to do.

    While the GPU sleeps it takes about a thousand launches, and the host waits for more.
    """
    start = time.perf_counter()
    run()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return host, time.perf_counter() - start


def _times(run: Run, count: int, asleep: float = 0.0) -> list[float]:
    """Measure the milliseconds between the first and the last kernel of a run, `count` times.

    Before each run the GPU sleeps for `asleep` seconds, until the host, which may take longer to launch a
    small kernel than the GPU to run it, has launched all of it. A run that waits for the GPU itself is timed
    with its waits.
    """
    cold = torch.empty(L2_BYTES, dtype=torch.uint8, device="cuda")
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
    for before, after in events:
        cold.zero_()
        torch.cuda._sleep(int(asleep * CLOCK_HERTZ))
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in events]


def attempt(make: Callable[..., Run | str], *arguments: object) -> Run | str:
    """Return `make`'s runner or why it failed: a rival that fails is a result, not the end of a case."""
    try:
        return make(*arguments)
    except Exception as error:
        return reason(error)


def tiles_used(measured: tuning.Table):
    """Let the kernels use the entries of a table for a block."""
    real = tuning.table
    return patch.object(tuning, "table", lambda name: real(name).merged(measured))


def measure(case: Case, deadline: float, tiles: Path | None = None) -> Result:
    """Time every runner of a case in turn; record what fails or comes too late. Raises nothing.

    With a file of measured tiles jixu is timed twice, with the built-in ones and with these.
    """
    result = Result(case.name, flops=case.flops, bytes=case.bytes, tokens=case.tokens)
    runners = attempt(case.runners)
    if isinstance(runners, str):
        result.absent["jixu"] = runners
        return result
    for name, run in runners.items():
        left = deadline - time.monotonic() - COMPILE_SECONDS.get(name, 0.0)
        if isinstance(run, str):
            result.absent[name] = run
        elif left < 0:
            result.absent[name] = LATE
        else:
            timing = attempt(time_run, run, case.of_kernels)
            (result.absent if isinstance(timing, str) else result.timings)[name] = timing
    if tiles and "jixu" in result.timings:
        with tiles_used(tuning.read_table(tiles)):
            remade = attempt(case.runners)  # a schedule of attention holds the size of its tiles
            timing = remade if isinstance(remade, str) else attempt(time_run, remade["jixu"], case.of_kernels)
        (result.absent if isinstance(timing, str) else result.timings)[TUNED] = timing
    return result


def measure_ceilings(device: str = "cuda", side: int = 8192, size: int = 2**32) -> Ceilings:
    """Measure products of `side` x `side` matrices and a copy of `size` bytes."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = statistics.median(time_run(lambda: a @ b).milliseconds for _ in range(3))
    source = torch.empty(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = statistics.median(time_run(lambda: target.copy_(source)).milliseconds for _ in range(3))
    return Ceilings(2 * side**3 / product * 1e3, 2 * size / copy * 1e3)


def passes(forward: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Run:
    """Make a run of both passes."""
    gradient: list[torch.Tensor] = []

    def run() -> None:
        out = forward()
        if not gradient:
            gradient.append(torch.randn_like(out))
        torch.autograd.grad(out, inputs, gradient[0])

    return run


def table(results: list[Result], ceilings: Ceilings | None) -> str:
    """Write a Markdown row for every runner: its rate, its share of the ceilings, its ratio to jixu's.

    The share of a training step, of which only FLOPs are counted, is its MFU.
    """
    lines = [
        "| case | who | ms | host ms | idle | TFLOP/s | GB/s | of the roofline | peak MiB | jixu is |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        ours = result.timings.get("jixu")
        case = result.case + (f" (WRONG: {', '.join(result.wrong)})" if result.wrong else "")
        for name, timing in result.timings.items():
            rates = [x / timing.milliseconds * 1e3 for x in (result.flops, result.bytes)]
            floor = max(result.flops / ceilings.flops, result.bytes / ceilings.bytes) if ceilings else 0.0
            share = f"{floor / timing.milliseconds * 1e3:.0%}" if floor else ""
            ratio = f"{timing.milliseconds / ours.milliseconds:.2f}x" if ours and name != "jixu" else ""
            tokens = f" ({result.tokens / timing.milliseconds * 1e3:,.0f} tokens/s)" if result.tokens else ""
            host = "" if timing.host is None else f"{timing.host:.2f}"
            idle = "" if timing.idle is None else f"{timing.idle:.0%}"
            peak = f"{timing.peak_bytes / 2**20:.0f}" if timing.peak_bytes else ""  # a graph's is its own
            lines.append(
                f"| {case} | {name}{tokens} | {timing.milliseconds:.3f} | {host} | {idle} "
                f"| {rates[0] / 1e12:.1f} | {rates[1] / 1e9:.0f} | {share} "
                f"| {peak} | {ratio} |"
            )
        lines += [f"| {case} | {name} | {why} | | | | | | | |" for name, why in result.absent.items()]
    return "\n".join(lines) + "\n"
