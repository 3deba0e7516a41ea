"""Timing, memory and ceilings on a GPU, and the records they go into."""

from __future__ import annotations

import importlib.util
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu.workers import LATE, reason
from kernels import tuning

Run = Callable[[], object]
# runners that compile before they run, and the seconds that may take (an H200's host took 75): not begun when
# fewer are left, as a case that does not end in time is lost
COMPILE_SECONDS = {"torch.compile": 20.0, "transformers compiled": 75.0}
CLOCK_HERTZ = 2e9  # about the highest of any GPU so far
L2_BYTES = 2**28  # more than any GPU's L2
LEAST_RUNS = 10  # for a median and its spread
# in which a case's runners take turns: a step's time differed more between two minutes than within one
ROUNDS = 2
# of the GPU, as nvidia-smi names it
STATE = ("driver_version", "power.limit", "power.draw", "clocks.max.sm", "clocks.sm", "clocks.mem")
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

    Of whole steps also the host's milliseconds and those the GPU was busy for. `rounds` has their medians.
    """

    milliseconds: float
    low: float
    high: float
    peak_bytes: int = 0
    host: float | None = None
    busy: float | None = None
    rounds: tuple[float, ...] = ()

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
    gpu: dict[str, str] = field(default_factory=dict)  # its state afterwards


@dataclass(frozen=True)
class Ceilings:
    """The measured best of this GPU: bf16 products of random 8192 matrices, copies in and out."""

    flops: float  # a second
    bytes: float  # a second, read and written


def gpu_state() -> dict[str, str]:
    """The GPU's driver, clocks and power, where nvidia-smi tells them."""
    if not torch.cuda.is_available():
        return {}
    gpu = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
    query = ["nvidia-smi", gpu, f"--query-gpu={','.join(STATE)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(STATE, said.strip().split(", "), strict=False))


def time_rounds(
    run: Run, of_kernels: bool = True, seconds: float = 0.15, rounds: int = 1
) -> Iterator[Timing]:
    """Time repeated runs on the GPU with a cold L2, in rounds that take `seconds` together.

    Yields the timing of all runs so far after each round. On a CPU, which tests the code alone, it is a run.
    """
    peak, host, whole = _first_runs(run)
    count = max(LEAST_RUNS, min(200, int(seconds / (whole + 2 * host)))) // rounds
    times: list[float] = []
    # a step sleeps for longer than it runs, and its kernels' time hardly varies
    busy = None if of_kernels else statistics.median(_times(run, LEAST_RUNS // 2, asleep=2 * host))
    medians: tuple[float, ...] = ()
    for _ in range(rounds):
        latest = _times(run, count, asleep=2 * host if of_kernels else 0.0)
        medians = *medians, statistics.median(latest)
        times = sorted([*times, *latest])
        spread = times[len(times) // 5], times[len(times) * 4 // 5]
        host_ms = None if of_kernels else 1e3 * host
        yield Timing(statistics.median(times), *spread, peak, host_ms, busy, medians)


def _first_runs(run: Run) -> tuple[int, float, float]:
    """A run's peak memory, and the seconds in which the host launches it and in which it is done.

    The GPU has nothing else to do: while it sleeps it takes about a thousand launches, and the host waits for
    more.
    """
    if not torch.cuda.is_available():
        return 0, 0.0, math.inf
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        host = time.perf_counter() - start
        torch.cuda.synchronize()
        seconds.append((host, time.perf_counter() - start))
    return peak, *map(statistics.median, zip(*seconds, strict=True))


def _times(run: Run, count: int, asleep: float = 0.0) -> list[float]:
    """Measure the milliseconds between the first and the last kernel of a run, `count` times.

    Before each run the GPU sleeps for `asleep` seconds, until the host, which may take longer to launch a
    small kernel than the GPU to run it, has launched all of it. A run that waits for the GPU itself is timed
    with its waits.
    """
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run()
        return [1e3 * (time.perf_counter() - start)]
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


def rival(package: str, make: Callable[..., Run | str], *arguments: object) -> Run | str:
    """`attempt` what needs a package."""
    return attempt(make, *arguments) if importlib.util.find_spec(package) else "not installed"


def tiles_used(measured: tuning.Table):
    """Let the kernels use the entries of a table for a block."""
    real = tuning.table
    return patch.object(tuning, "table", lambda name: real(name).merged(measured))


def measure(case: Case, deadline: float, tiles: Path | None = None) -> Result:
    """Time the runners of a case in turns; record what fails or comes too late. Raises nothing.

    With a file of measured tiles jixu is timed twice, with the built-in ones and with these.
    """
    result = Result(case.name, flops=case.flops, bytes=case.bytes, tokens=case.tokens)
    runners = attempt(case.runners)
    if isinstance(runners, str):
        result.absent["jixu"] = runners
        return result
    turns: dict[str, Iterator[Timing]] = {}
    for name, run in runners.items():
        if isinstance(run, str):
            result.absent[name] = run
        else:
            turns[name] = time_rounds(run, case.of_kernels, rounds=ROUNDS)
    if tiles and "jixu" in turns:
        turns[TUNED] = _remade(case)
    for number in range(ROUNDS):
        for name, timings in list(turns.items()):
            left = deadline - time.monotonic() - (0.0 if number else COMPILE_SECONDS.get(name, 0.0))
            with tiles_used(tuning.read_table(tiles)) if tiles and name == TUNED else nullcontext():
                timing = LATE if left < 0 else attempt(next, timings)
            if isinstance(timing, Timing):
                result.timings[name] = timing
                continue
            del turns[name]
            if timing != LATE or not number:
                result.absent[name] = timing
    result.gpu = gpu_state()
    return result


def _remade(case: Case) -> Iterator[Timing]:
    """Time jixu made again, as a schedule of attention holds the size of its tiles."""
    yield from time_rounds(case.runners()["jixu"], case.of_kernels, rounds=ROUNDS)  # type: ignore[arg-type]


def measure_ceilings(device: str = "cuda", side: int = 8192, size: int = 2**32) -> Ceilings:
    """Measure products of `side` x `side` matrices and a copy of `size` bytes."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = statistics.median(next(time_rounds(lambda: a @ b)).milliseconds for _ in range(3))
    source = torch.empty(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = statistics.median(next(time_rounds(lambda: target.copy_(source))).milliseconds for _ in range(3))
    return Ceilings(2 * side**3 / product * 1e3, 2 * size / copy * 1e3)


def passes(forward: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Make a run of both passes, which returns output and gradients."""
    gradient: list[Tensor] = []

    def run() -> list[Tensor]:
        out = forward()
        if not gradient:
            gradient.append(torch.randn_like(out))
        return [out, *torch.autograd.grad(out, inputs, gradient[0])]

    return run


def table(results: list[Result], ceilings: Ceilings | None) -> str:
    """Write a Markdown row for every runner: its rate, its share of the ceilings, its ratio to jixu's.

    Beside the time are those of its rounds. Of a training step only FLOPs are counted: the share is its MFU.
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
            of_rounds = f" ({min(timing.rounds):.3f} to {max(timing.rounds):.3f})" if timing.rounds else ""
            host = "" if timing.host is None else f"{timing.host:.2f}"
            idle = "" if timing.idle is None else f"{timing.idle:.0%}"
            peak = f"{timing.peak_bytes / 2**20:.0f}" if timing.peak_bytes else ""  # a graph's is its own
            lines.append(
                f"| {case} | {name}{tokens} | {timing.milliseconds:.3f}{of_rounds} | {host} | {idle} "
                f"| {rates[0] / 1e12:.1f} | {rates[1] / 1e9:.0f} | {share} "
                f"| {peak} | {ratio} |"
            )
        lines += [f"| {case} | {name} | {why} | | | | | | | |" for name, why in result.absent.items()]
    return "\n".join(lines) + "\n"
