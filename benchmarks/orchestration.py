"""What Prefect adds to a refresh: refresh-corpus, as its command runs it, against the same plain functions.

    python -m benchmarks.orchestration [--source FILE ...] [--characters N] [--pairs N]

Two processes stay, one for each, and refresh in turns into empty workspaces; the flow against a server that
runs. Told are medians over pairs, with the interval that holds each at 95%: what is added is the small
difference of two long times, which on a shared machine lie further apart by chance. What imports and the
server take to begin is told beside them: it does not grow with the corpus. About 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
from scipy.stats import binom

from benchmarks.corpora import load_sentences, write_corpus
from benchmarks.data_prep import make_vocabulary
from benchmarks.results_file import write_result
from data.recipe import RefreshSettings
from data.refresh import refresh

GOAL = 0.03
Rows = dict[str, list[dict[str, float]]]


def serve_runs(kind: str, source: str, vocabulary: str, workers: int) -> None:
    """Refresh as a flow or plainly for each workspace that is named on a line, and answer with a row."""
    given = {"corpus": "c", "tokenizer": vocabulary, "workers": workers}
    began = time.perf_counter()
    with ExitStack() as whole:
        if kind == "flow":
            from flows.cli import without_heartbeats
            from flows.refresh_corpus import refresh_corpus

            whole.enter_context(without_heartbeats())
        imported = time.perf_counter() - began
        for line in sys.stdin:
            workspace = line.strip()
            began, cores = time.perf_counter(), core_seconds()
            if kind == "flow":
                refresh_corpus(source=[source], workspace=workspace, **given)
            else:
                refresh(RefreshSettings(sources=(source,), workspace=Path(workspace), **given))
            row = {"seconds": time.perf_counter() - began, "core_seconds": core_seconds() - cores}
            print(json.dumps({**row, "import_seconds": imported}), flush=True)


def core_seconds() -> float:
    """Of this process, and of its workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def start(kind: str, source: Path, vocabulary: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    """A process of one kind that waits for workspaces."""
    server = {"PREFECT_HOME": str(folder / "client"), "PREFECT_LOGGING_LEVEL": "ERROR"}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.orchestration", "--run", kind, source, vocabulary, str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | server,
    )


def measure(process: subprocess.Popen[str], workspace: Path, server: psutil.Process) -> dict[str, float]:
    """One refresh, with the shards and bytes it left. Its core seconds are the server's meanwhile too."""
    before = served_seconds(server)
    process.stdin.write(f"{workspace}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit("a refresh failed; the reason stands above")
    row = json.loads(answer)
    row["core_seconds"] += served_seconds(server) - before
    row["shards"] = len(list((workspace / "shards").rglob("*.parquet")))
    for part in ("shards", "documents"):
        row[f"{part}_bytes"] = sum(path.stat().st_size for path in (workspace / part).rglob("*.parquet"))
    shutil.rmtree(workspace)
    return row


def served_seconds(server: psutil.Process) -> float:
    """Processor time of the server up to now."""
    return sum(sum(one.cpu_times()[:2]) for one in (server, *server.children(recursive=True)))


def take_turns(
    processes: dict[str, subprocess.Popen[str]], folder: Path, pairs: int, server: psutil.Process
) -> Rows:
    """Rows of each kind, after one refresh of each that does not count."""
    rows: Rows = {kind: [] for kind in processes}
    for number in range(pairs + 1):
        # who begins changes from pair to pair
        for kind in sorted(processes, reverse=number % 2 == 0):
            row = measure(processes[kind], folder / "workspace", server)
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
    parser.add_argument("--characters", type=int, default=100_000_000, help="of the corpus [%(default)s]")
    parser.add_argument("--pairs", type=int, default=12, help="of refreshes [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    given = parser.parse_args()
    from flows.serve import environment, start_server, stop

    sentences = load_sentences(given.source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(environment(str(folder), port))
        (folder / ".prefect").mkdir()
        began = time.perf_counter()
        server = start_server(port, folder / "server.log")
        server_seconds = time.perf_counter() - began
        processes: dict[str, subprocess.Popen[str]] = {}
        try:
            written = write_corpus(folder / "raw", sentences, given.characters)
            for kind in ("plain", "flow"):
                processes[kind] = start(kind, folder / "raw", vocabulary, folder, given.workers)
            rows = take_turns(processes, folder, given.pairs, psutil.Process(server.pid))
        finally:
            for process in processes.values():
                process.stdin.close()
                process.wait()
            stop(server)
    report(rows, written, server_seconds)


def in_pairs(rows: Rows, of: Callable[[dict, dict], float]) -> tuple[float, float, float]:
    """The median over pairs of a figure of flow and plain functions, between the ends of an interval.

    The interval is between order statistics (a sign test inverted): of 6 pairs the lowest and highest, which
    hold the median at 97%, of 9 the second ones, at 96%; of fewer than 6 pairs it is less than 95%.
    """
    figures = sorted(of(flow, plain) for flow, plain in zip(rows["flow"], rows["plain"], strict=True))
    cut = max(int(binom.ppf(0.025, len(figures), 0.5)) - 1, 0)
    return figures[cut], statistics.median(figures), figures[-1 - cut]


def report(rows: Rows, characters: int, server_seconds: float) -> None:
    """What the flow adds to the time, and to the cores' time, of a refresh."""
    seconds = in_pairs(rows, lambda flow, plain: flow["seconds"] - plain["seconds"])
    wall = in_pairs(rows, lambda flow, plain: flow["seconds"] / plain["seconds"] - 1)
    cores = in_pairs(rows, lambda flow, plain: flow["core_seconds"] / plain["core_seconds"] - 1)
    plain = statistics.median(row["seconds"] for row in rows["plain"])
    imports = statistics.median(row["import_seconds"] for row in rows["flow"])
    low, added, high = seconds
    verdict = (
        f"orchestration: the flow adds {shares(*wall)} (goal {100 * GOAL:.0f}: "
        f"{judge(*wall)}), {added:.2f} s ({low:.2f} to {high:.2f}), to the "
        f"{plain:.0f} s of the plain functions on {characters:,} characters in {shards_of(rows)} shards, and "
        f"{shares(*cores)} to their cores', the server's included ({len(rows['flow'])} pairs). Beside it "
        f"{imports:.1f} s of imports, and {server_seconds:.0f} s where a server has to begin"
    )
    figures = {"added_seconds": seconds, "added": wall, "added_cores": cores}
    write_result("orchestration", verdict, {"characters": characters, **figures, "runs": rows})


def judge(low: float, _: float, high: float) -> str:
    """Whether the goal is met, where the interval lets it be told."""
    return "met" if high <= GOAL else "missed" if low > GOAL else "not decided"


def shares(low: float, middle: float, high: float) -> str:
    """Shares of a time as people read them."""
    return f"{100 * middle:+.1f}% ({100 * low:+.1f} to {100 * high:+.1f})"


def shards_of(rows: Rows) -> str:
    """How many shards a refresh wrote; more than one number where they are not the same."""
    return " or ".join(str(int(n)) for n in sorted({row["shards"] for kind in rows.values() for row in kind}))


if __name__ == "__main__":
    main()
