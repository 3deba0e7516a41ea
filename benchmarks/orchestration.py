"""What Prefect adds to a refresh: refresh-corpus, as its command runs it, against the same plain functions.

    python -m benchmarks.orchestration [--source FILE ...] [--characters N] [--pairs N]

Two processes refresh into empty workspaces again and again: one as the flow, beside a server like that of
`make serve`, the other with the plain functions. What Prefect adds is a small difference of two long times,
and the speed of a shared machine varies by more than that from one minute to the next. So the two refreshes
of a pair take turns of two seconds: one is stopped (SIGSTOP, the flow together with its server) while the
other runs, and only its own turns count as its time. Clocks do not stop, which counts against the flow: the
server's periodic work falls due more often in its turns. Reports means over pairs with Student's 95%
intervals, and the start-up time of imports and of a server. Takes about 30 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from scipy.stats import t

from benchmarks.support.corpora import load_sentences, make_vocabulary, write_corpus
from benchmarks.support.results import write_result
from data.refresh import RefreshSettings, refresh

GOAL = 0.03
TURN_SECONDS = 2.0
Rows = dict[str, list[dict[str, float]]]


def serve_runs(kind: str, source: str, vocabulary: str, workers: int) -> None:
    """Refresh as a flow or plainly for each workspace that is named on a line, and answer with a row."""
    given = {"corpus": "c", "tokenizer": vocabulary, "workers": workers}
    began = time.perf_counter()
    with ExitStack() as whole:
        # worker processes would import this file again, and what it needs; those of commands do not either
        sys.modules["__main__"].__spec__ = None
        sys.modules["__main__"].__dict__.pop("__file__", None)
        if kind == "flow":
            from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

            from flows.refresh_corpus import refresh_corpus

            whole.enter_context(temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}))
        print(json.dumps({"import_seconds": time.perf_counter() - began}), flush=True)
        for line in sys.stdin:
            workspace, cores = line.strip(), core_seconds()
            if kind == "flow":
                refresh_corpus(source=[source], workspace=workspace, **given)
            else:
                refresh(RefreshSettings(source=(source,), workspace=Path(workspace), **given))
            print(json.dumps({"core_seconds": core_seconds() - cores}), flush=True)


def core_seconds() -> float:
    """Processor time of this process and of its workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Runner:
    """A process that refreshes when asked, and the process groups that are stopped and continued with it."""

    def __init__(self, kind: str, folder: Path, given: Sequence[str | Path], server: int | None):
        settings = {"PREFECT_HOME": str(folder / "client"), "PREFECT_LOGGING_LEVEL": "ERROR"}
        self.workspace = folder / f"workspace-{kind}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.orchestration", "--run", kind, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | settings,
            start_new_session=True,  # a group of its own, with its workers
        )
        self.groups = [self.process.pid] if server is None else [server, self.process.pid]
        self.server = None if server is None else psutil.Process(server)
        self.seconds = self.served = 0.0
        self.imports = self.answer()

    def begin(self) -> None:
        """Ask for a refresh; it begins with the first turn."""
        self.seconds, self.served = 0.0, self.served_seconds()
        self.process.stdin.write(f"{self.workspace}\n")
        self.process.stdin.flush()

    def take_turn(self) -> dict[str, float] | None:
        """Run for a turn at most. Returns the process's answer if the refresh has ended."""
        began = time.perf_counter()
        self.send(signal.SIGCONT)
        ready, _, _ = select.select([self.process.stdout], [], [], TURN_SECONDS)
        answer = self.answer() if ready else None
        self.send(signal.SIGSTOP)
        self.seconds += time.perf_counter() - began
        return answer

    def row(self, answer: dict[str, float]) -> dict[str, float]:
        """Describe the refresh that has ended: times, what it wrote, the server's core seconds."""
        row = {"seconds": self.seconds, "server_seconds": self.served_seconds() - self.served} | answer
        row["core_seconds"] += row["server_seconds"]
        row["shards"] = len(list((self.workspace / "shards").rglob("*.parquet")))
        for part in ("shards", "documents"):
            written = (self.workspace / part).rglob("*.parquet")
            row[f"{part}_bytes"] = sum(path.stat().st_size for path in written)
        shutil.rmtree(self.workspace)
        return row

    def answer(self) -> dict[str, float]:
        """Read the process's next answer."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a refresh failed; the reason is printed above")
        return json.loads(line)

    def send(self, number: int) -> None:
        """Send a signal to each group that still exists."""
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def served_seconds(self) -> float:
        """Processor time of the server up to now."""
        parts = [] if self.server is None else [self.server, *self.server.children(recursive=True)]
        return sum(sum(part.cpu_times()[:2]) for part in parts)

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def begin_server(folder: Path) -> subprocess.Popen[bytes]:
    """A server as `make serve` has it, which this process's environment names from now on."""
    from flows.orchestration.serve import environment, start_server

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        os.environ.update(environment(str(folder), listener.getsockname()[1]))
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
        return start_server(listener, folder / "reports", folder / "server.log", threading.Event())


def take_turns(runners: dict[str, Runner], pairs: int) -> Rows:
    """Measure pairs of refreshes, after one pair that does not count; returns the rows of each kind."""
    rows: Rows = {kind: [] for kind in runners}
    for runner in runners.values():
        runner.send(signal.SIGSTOP)
    for number in range(pairs + 1):
        for runner in runners.values():
            runner.begin()
        # take turns at going first
        waiting = sorted(runners, reverse=number % 2 == 0)
        while waiting:
            kind = waiting.pop(0)
            answer = runners[kind].take_turn()
            if not answer:
                waiting.append(kind)
                continue
            row = runners[kind].row(answer)
            print(kind, json.dumps(row), file=sys.stderr)
            if number:
                rows[kind].append(row)
    return rows


def main() -> None:
    if "--run" in sys.argv:
        kind, source, vocabulary, workers = sys.argv[2:]
        serve_runs(kind, source, vocabulary, int(workers))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character]")
    parser.add_argument("--characters", type=int, default=300_000_000, help="of the corpus [%(default)s]")
    parser.add_argument("--pairs", type=int, default=8, help="of refreshes, 2 or more [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    given = parser.parse_args()
    if given.pairs < 2:
        parser.error(f"--pairs {given.pairs}: an interval takes 2 or more")
    from flows.orchestration.serve import stop

    sentences = load_sentences(given.source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        written = write_corpus(folder / "raw", sentences, given.characters)
        began = time.perf_counter()
        server = begin_server(folder)
        start_seconds = time.perf_counter() - began
        runners: dict[str, Runner] = {}
        try:
            for kind, beside in (("plain", None), ("flow", server.pid)):
                work = [folder / "raw", vocabulary, str(given.workers)]
                runners[kind] = Runner(kind, folder, work, beside)
            rows = take_turns(runners, given.pairs)
        finally:
            for runner in runners.values():
                runner.end()
            stop(server)
    report(rows, written, start_seconds, runners["flow"].imports["import_seconds"])


def in_pairs(rows: Rows, of: Callable[[dict, dict], float]) -> tuple[float, float, float]:
    """The mean over pairs of a figure of flow and plain functions, within Student's 95% interval.

    Of two pairs or more.
    """
    figures = [of(flow, plain) for flow, plain in zip(rows["flow"], rows["plain"], strict=True)]
    mean = statistics.fmean(figures)
    error = statistics.stdev(figures) / math.sqrt(len(figures))
    half = float(t.ppf(0.975, len(figures) - 1)) * error
    return mean - half, mean, mean + half


def report(rows: Rows, characters: int, start_seconds: float, import_seconds: float) -> None:
    """Report what the flow adds to the time of a refresh, by the clock and by the processors."""
    seconds = in_pairs(rows, lambda flow, plain: flow["seconds"] - plain["seconds"])
    wall = in_pairs(rows, lambda flow, plain: flow["seconds"] / plain["seconds"] - 1)
    cores = in_pairs(rows, lambda flow, plain: flow["core_seconds"] / plain["core_seconds"] - 1)
    plain = statistics.median(row["seconds"] for row in rows["plain"])
    served = statistics.fmean(row["server_seconds"] for row in rows["flow"])
    low, added, high = seconds
    verdict = (
        f"orchestration: the flow adds {shares(*wall)} (goal {100 * GOAL:.0f}: "
        f"{judge(*wall)}), {added:.2f} s ({low:.2f} to {high:.2f}), to the "
        f"{plain:.0f} s of the plain functions on {characters:,} characters in {shards_of(rows)} shards, and "
        f"{shares(*cores)} to their cores' ({len(rows['flow'])} pairs), the server's "
        f"{served:.1f} s included. Beside it {import_seconds:.1f} s of imports, and {start_seconds:.0f} s "
        "where a server has to begin"
    )
    figures = {"added_seconds": seconds, "added": wall, "added_cores": cores, "server_seconds": served}
    write_result("orchestration", verdict, {"characters": characters, **figures, "runs": rows})


def judge(low: float, _: float, high: float) -> str:
    """Whether the goal is met, if the interval decides it."""
    return "met" if high <= GOAL else "missed" if low > GOAL else "not decided"


def shares(low: float, middle: float, high: float) -> str:
    """Format a share and its interval as percentages."""
    return f"{100 * middle:+.1f}% ({100 * low:+.1f} to {100 * high:+.1f})"


def shards_of(rows: Rows) -> str:
    """The number of shards a refresh wrote, or the numbers if refreshes differ."""
    return " or ".join(str(int(n)) for n in sorted({row["shards"] for kind in rows.values() for row in kind}))


if __name__ == "__main__":
    main()
