"""What Prefect adds to a refresh: refresh-corpus, as its command runs it, against the same plain functions.

    python -m benchmarks.orchestration [--source FILE ...] [--characters N] [--pairs N]

Two processes refresh into empty workspaces in turn: one as the flow, beside a server like that of `make
serve`, the other with the plain functions. Reports means over pairs with Student's 95% intervals, as what
Prefect adds is a small difference of two long times. Takes about 30 minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
from scipy.stats import ttest_1samp

from benchmarks.support.corpora import Characters, Source, Vocabulary, prepared, write_corpus
from benchmarks.support.results import command, write_result
from data.errors import ConfigError
from data.refresh import RefreshSettings, refresh
from data.workers import end

GOAL = 0.03
Rows = dict[str, list[dict[str, float]]]


def measure(kind: str, given: Mapping[str, object], workspace: Path) -> dict[str, float]:
    """Refresh as a flow or plainly into a new workspace: its time, and what it wrote."""
    began = time.perf_counter()
    if kind == "flow":
        from flows.refresh_corpus import refresh_corpus

        refresh_corpus(workspace=str(workspace), **given)
    else:
        refresh(RefreshSettings(workspace=workspace, **given))
    seconds = time.perf_counter() - began
    sizes = {
        part: [path.stat().st_size for path in (workspace / part).rglob("*.parquet")]
        for part in ("shards", "documents")
    }
    shutil.rmtree(workspace)
    written = {f"{part}_bytes": sum(of_part) for part, of_part in sizes.items()}
    return {"seconds": seconds, "shards": len(sizes["shards"]), **written}


def serve(folder: Path) -> psutil.Popen:
    """A server as `make serve` has it, which this process's environment names from now on."""
    from flows.orchestration.serve import environment
    from flows.orchestration.servers import begin_server, wait_for_server

    log = folder / "server.log"
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        os.environ |= {"PREFECT_HOME": str(folder), "PREFECT_LOGGING_LEVEL": "ERROR"}  # removed afterwards
        os.environ.update(environment(str(folder), listener.getsockname()[1]))
        server = begin_server(listener, log, folder / "reports")
        wait_for_server(server, listener, log)
    return server


def take_turns(given: Mapping[str, object], folder: Path, pairs: int) -> Rows:
    """Measure pairs of refreshes, after one pair that does not count; returns the rows of each kind."""
    rows: Rows = {"plain": [], "flow": []}
    new = get_context("spawn")
    with ProcessPoolExecutor(1, new) as plain, ProcessPoolExecutor(1, new) as flow:
        pools = {"plain": plain, "flow": flow}
        for number in range(pairs + 1):
            for kind in sorted(rows, reverse=number % 2 == 0):  # take turns at going first
                row = pools[kind].submit(measure, kind, given, folder / f"workspace-{kind}").result()
                print(kind, row, file=sys.stderr)
                if number:
                    rows[kind].append(row)
    return rows


def main(
    *, source: Source = (), tokenizer: Vocabulary = None, characters: Characters = 300_000_000,
    pairs: int = 8, workers: int = 2,
) -> None:  # fmt: skip
    """Run the benchmark.

    Args:
        pairs: Of refreshes, 2 or more.
    """
    if pairs < 2:
        raise ConfigError(f"--pairs {pairs}: an interval takes 2 or more")
    with prepared(source, tokenizer) as (folder, sentences, vocabulary):
        written = write_corpus(folder / "raw", sentences, characters)
        raw = (str(folder / "raw"),)
        given = {"corpus": "c", "source": raw, "tokenizer": str(vocabulary), "workers": workers}
        server = serve(folder)
        try:
            rows = take_turns(given, folder, pairs)
        finally:
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
    command(main)
