"""How time and memory grow with the corpus: 1x, 4x and 16x, and with --large one of 5 GB.

    python -m benchmarks.scale [--source FILE ...] [--characters N] [--large]

Each size has its own workspace and process. Memory is the peak of the largest worker, and of the process that
plans and commits.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.support.corpora import (
    Characters,
    Source,
    Vocabulary,
    prepared,
    refresh_settings,
    source_names,
    write_corpus,
)
from benchmarks.support.results import command, met, write_result
from data.refresh import refresh

EXPONENT_GOAL, MEMORY_GOAL = 1.05, 1024  # MiB
LARGE_BYTES = 5 * 10**9


def measure_size(source: Path, vocabulary: Path, workspace: Path, workers: int) -> dict[str, float]:
    """Refresh in this process and workers; seconds, and MiB of the largest worker and of this process."""
    began = time.perf_counter()
    result = refresh(refresh_settings(source, vocabulary, workspace, workers))
    seconds = time.perf_counter() - began
    users = (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
    worker, planner = (resource.getrusage(who).ru_maxrss / 1024 for who in users)
    return {
        "seconds": seconds,
        "documents": result.documents,
        "instances": result.instances,
        "tokens": result.tokens,
        "worker_mib": worker,
        "planner_mib": planner,
    }


def exponent(rows: Sequence[dict[str, float]]) -> float:
    """Slope of log time over log size, by least squares."""
    sizes, seconds = ([math.log(row[name]) for row in rows] for name in ("characters", "seconds"))
    return statistics.linear_regression(sizes, seconds).slope


def main(
    *, source: Source = (), tokenizer: Vocabulary = None, characters: Characters = 10_000_000,
    workers: int = 2, large: bool = False,
) -> None:  # fmt: skip
    """Run the benchmark.

    Args:
        large: Also 5 GB; takes about half an hour more.
    """
    sizes = {f"{n}x": n * characters for n in (1, 4, 16)} | ({"large": LARGE_BYTES // 3} if large else {})
    rows: dict[str, dict[str, float]] = {}
    with prepared(source, tokenizer) as (folder, sentences, vocabulary):
        raw, workspace = folder / "raw", folder / "workspace"
        for name, size in sizes.items():
            written = write_corpus(raw, sentences, size)
            # in a new process, whose peaks are of this size alone
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row = pool.submit(measure_size, raw, vocabulary, workspace, workers).result()
            rows[name] = {"characters": written, "characters_per_second": written / row["seconds"], **row}
            print(name, json.dumps(rows[name]), file=sys.stderr)
            shutil.rmtree(raw)
            shutil.rmtree(workspace)
    slope = exponent([rows[name] for name in ("1x", "4x", "16x")])
    result = {"sources": source_names(source), "workers": workers, "sizes": rows, "exponent": slope}
    write_result("scale", describe(rows, slope), result)


def describe(rows: dict[str, dict[str, float]], slope: float) -> str:
    most = max(row["worker_mib"] for row in rows.values())
    verdict = (
        f"scale: time grows as size to the {slope:.3f} (goal {EXPONENT_GOAL}: "
        f"{met(slope <= EXPONENT_GOAL)}), a worker held at most {most:,.0f} MiB (goal {MEMORY_GOAL:,}: "
        f"{met(most <= MEMORY_GOAL)}), "
        f"{rows['16x']['worker_mib'] - rows['4x']['worker_mib']:+,.0f} MiB from 4x to 16x"
    )
    if large := rows.get("large"):
        verdict += (
            f"; {large['characters']:,.0f} characters in {large['seconds'] / 60:.0f} min, "
            f"{large['worker_mib']:,.0f} MiB a worker, {large['planner_mib']:,.0f} MiB to plan"
        )
    return verdict


if __name__ == "__main__":
    command(main)
