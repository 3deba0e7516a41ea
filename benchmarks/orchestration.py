"""What Prefect adds to a refresh: refresh-corpus, as its command runs it, against the same plain functions.

    python -m benchmarks.orchestration [--source FILE ...] [--characters N] [--pairs N]

Two processes refresh into empty workspaces again and again: one as the flow, beside a server like that of
`make serve`, the other with the plain functions. What Prefect adds is a small difference of two long times,
and the speed of a shared machine varies by more than that from one minute to the next. So the two refreshes
of a pair take turns of two seconds: one is stopped (SIGSTOP, the flow together with its server) while the
other runs, and only its own turns count as its time. Clocks do not stop, which counts against the flow: the
server's periodic work falls due more often in its turns. Reports means over pairs with Student's 95%
intervals. Takes about 30 minutes on two cores.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
from scipy.stats import ttest_1samp

from benchmarks.support.corpora import corpus_options, load_sentences, make_vocabulary, write_corpus
from benchmarks.support.results import write_result
from data.refresh import RefreshSettings, refresh
from data.workers import end

GOAL = 0.03
TURN_SECONDS = 2.0
Rows = dict[str, list[dict[str, float]]]


def serve_runs(kind: str, source: str, vocabulary: str, workers: int) -> None:
    """Refresh as a flow or plainly for each workspace that is named on a line, and answer with a line."""
    given = {"corpus": "c", "tokenizer": vocabulary, "workers": workers}
    # worker processes would import this file again, and what it needs; those of commands do not either
    sys.modules["__main__"].__spec__ = None
    sys.modules["__main__"].__dict__.pop("__file__", None)
    no_heartbeats = nullcontext()
    if kind == "flow":
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        from flows.refresh_corpus import refresh_corpus

        no_heartbeats = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with no_heartbeats:
        print("ready", flush=True)
        for line in sys.stdin:
            workspace = line.strip()
            if kind == "flow":
                refresh_corpus(source=[source], workspace=workspace, **given)
            else:
                refresh(RefreshSettings(source=(source,), workspace=Path(workspace), **given))
            print("done", flush=True)


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
        self.seconds = 0.0
        self.read_answer()

    def begin(self) -> None:
        """Ask for a refresh; it begins with the first turn."""
        self.seconds = 0.0
        self.process.stdin.write(f"{self.workspace}\n")
        self.process.stdin.flush()

    def take_turn(self) -> bool:
        """Run for a turn at most. Returns whether the refresh has ended."""
        began = time.perf_counter()
        self.send(signal.SIGCONT)
        ready, _, _ = select.select([self.process.stdout], [], [], TURN_SECONDS)
        if ready:
            self.read_answer()
        self.send(signal.SIGSTOP)
        self.seconds += time.perf_counter() - began
        return bool(ready)

    def row(self) -> dict[str, float]:
        """Describe the refresh that has ended: its time, and what it wrote."""
        sizes = {
            part: [path.stat().st_size for path in (self.workspace / part).rglob("*.parquet")]
            for part in ("shards", "documents")
        }
        shutil.rmtree(self.workspace)
        written = {f"{part}_bytes": sum(of_part) for part, of_part in sizes.items()}
        return {"seconds": self.seconds, "shards": len(sizes["shards"]), **written}

    def read_answer(self) -> None:
        """Wait for the process's next answer."""
        if not self.process.stdout.readline():
            raise SystemExit("a refresh failed; the reason is printed above")

    def send(self, number: int) -> None:
        """Send a signal to each group that still exists."""
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def serve(folder: Path) -> psutil.Popen:
    """A server as `make serve` has it, which this process's environment names from now on."""
    from flows.orchestration.serve import environment
    from flows.orchestration.servers import begin_server, wait_for_server

    log = folder / "server.log"
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        os.environ.update(environment(str(folder), listener.getsockname()[1]))
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
        server = begin_server(listener, log, folder / "reports")
        wait_for_server(server, listener, log)
    return server


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
            if not runners[kind].take_turn():
                waiting.append(kind)
                continue
            row = runners[kind].row()
            print(kind, row, file=sys.stderr)
            if number:
                rows[kind].append(row)
    return rows


def main() -> None:
    if "--run" in sys.argv:
        kind, source, vocabulary, workers = sys.argv[2:]
        serve_runs(kind, source, vocabulary, int(workers))
        return
    parser = corpus_options("orchestration", __doc__, characters=300_000_000)
    parser.add_argument("--pairs", type=int, default=8, help="of refreshes, 2 or more [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    given = parser.parse_args()
    if given.pairs < 2:
        parser.error(f"--pairs {given.pairs}: an interval takes 2 or more")
    sentences = load_sentences(given.source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        written = write_corpus(folder / "raw", sentences, given.characters)
        server = serve(folder)
        runners: dict[str, Runner] = {}
        try:
            for kind, beside in (("plain", None), ("flow", server.pid)):
                work = [folder / "raw", vocabulary, str(given.workers)]
                runners[kind] = Runner(kind, folder, work, beside)
            rows = take_turns(runners, given.pairs)
        finally:
            for runner in runners.values():
                runner.end()
            end([server], 60, signal.SIGINT)
    report(rows, written)


def in_pairs(rows: Rows, of: Callable[[float, float], float]) -> tuple[float, float, float]:
    """The mean over two pairs or more of a figure of both seconds, within Student's 95% interval."""
    pairs = zip(rows["flow"], rows["plain"], strict=True)
    figures = [of(flow["seconds"], plain["seconds"]) for flow, plain in pairs]
    low, high = ttest_1samp(figures, 0).confidence_interval()
    return float(low), statistics.fmean(figures), float(high)


def report(rows: Rows, characters: int) -> None:
    """Report what the flow adds to the time of a refresh."""
    low, added, high = seconds = in_pairs(rows, lambda flow, plain: flow - plain)
    least, share, most = shares = in_pairs(rows, lambda flow, plain: flow / plain - 1)
    plain = statistics.median(row["seconds"] for row in rows["plain"])
    verdict = (
        f"orchestration: the flow adds {100 * share:+.1f}% ({100 * least:+.1f} to {100 * most:+.1f}; goal "
        f"{100 * GOAL:.0f}: {judge(*shares)}), {added:.2f} s ({low:.2f} to {high:.2f}), to the {plain:.0f} s "
        f"of the plain functions on {characters:,} characters in {rows['plain'][0]['shards']} shards "
        f"({len(rows['flow'])} pairs)"
    )
    figures = {"added_seconds": seconds, "added": shares}
    write_result("orchestration", verdict, {"characters": characters, **figures, "runs": rows})


def judge(low: float, _: float, high: float) -> str:
    """Whether the goal is met, if the interval decides it."""
    return "met" if high <= GOAL else "missed" if low > GOAL else "not decided"


if __name__ == "__main__":
    main()
