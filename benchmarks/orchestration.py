"""What Prefect adds to a refresh: the flow refresh-corpus against the same work as plain functions.

    python -m benchmarks.orchestration [--source FILE ...] [--characters N] [--rounds N]

Each runs in a process of its own, in turns, into an empty workspace; the flow against a server that runs.
What imports, the server and a worker take to begin is told beside it: it does not grow with the corpus.
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
from pathlib import Path

from benchmarks.corpora import load_sentences, write_corpus
from benchmarks.data_prep import make_vocabulary
from benchmarks.results_file import write_result
from data.recipe import RefreshSettings
from data.refresh import refresh

GOAL = 0.03


def run_one(kind: str, source: str, vocabulary: str, workspace: str, workers: int) -> dict[str, float]:
    """Refresh as a flow or plainly; seconds of the wall, and of the cores of this process and its workers."""
    given = {"corpus": "c", "tokenizer": vocabulary, "workers": workers}
    began = time.perf_counter()
    if kind == "flow":
        from flows.refresh_corpus import refresh_corpus
    imported = time.perf_counter() - began
    began, own = time.perf_counter(), time.process_time()
    if kind == "flow":
        refresh_corpus(source=[source], workspace=workspace, **given)
    else:
        refresh(RefreshSettings(sources=(source,), workspace=Path(workspace), **given))
    seconds, own = time.perf_counter() - began, time.process_time() - own
    workers_seconds = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    return {
        "seconds": seconds,
        "core_seconds": own + workers_seconds,
        "import_seconds": imported,
    }


def measure(
    kind: str, source: Path, vocabulary: Path, folder: Path, workers: int, api: str
) -> dict[str, float]:
    """Run one kind in a process of its own; also the bytes it left for each character of text."""
    workspace = folder / "workspace"
    arguments = ["--run", kind, str(source), str(vocabulary), str(workspace), str(workers)]
    server = {
        "PREFECT_API_URL": api,
        "PREFECT_HOME": str(folder / "client"),
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.orchestration", *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=os.environ | server,
    )
    row = json.loads(done.stdout.splitlines()[-1])
    for name in ("shards", "documents"):
        row[f"{name}_bytes"] = sum(path.stat().st_size for path in (workspace / name).rglob("*.parquet"))
    shutil.rmtree(workspace)
    return row


def main() -> None:
    if "--run" in sys.argv:
        kind, source, vocabulary, workspace, workers = sys.argv[2:]
        print(json.dumps(run_one(kind, source, vocabulary, workspace, int(workers))))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character]")
    parser.add_argument("--characters", type=int, default=24_000_000, help="of the corpus [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    given = parser.parse_args()
    from flows.serve import environment, start_server, stop

    sentences = load_sentences(given.source)
    rows: dict[str, list[dict[str, float]]] = {"plain": [], "flow": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        written = write_corpus(folder / "raw", sentences, given.characters)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(environment(str(folder), port))
        (folder / ".prefect").mkdir()
        began = time.perf_counter()
        server = start_server(port, folder / "server.log")
        server_seconds = time.perf_counter() - began
        try:
            for number in range(2 * given.rounds):
                kind = ("plain", "flow")[(number + number // 2) % 2]  # who begins changes from round to round
                row = measure(
                    kind, folder / "raw", vocabulary, folder, given.workers, os.environ["PREFECT_API_URL"]
                )
                rows[kind].append(row)
                print(kind, json.dumps(row), file=sys.stderr)
        finally:
            stop(server)
    report(rows, written, server_seconds)


def report(rows: dict[str, list[dict[str, float]]], characters: int, server_seconds: float) -> None:
    """What the flow adds, by medians: of the wall, and of cores, which a busy machine does not change."""

    def median(kind: str, name: str) -> float:
        return statistics.median(row[name] for row in rows[kind])

    added = {name: median("flow", name) / median("plain", name) - 1 for name in ("seconds", "core_seconds")}
    extra = median("flow", "core_seconds") - median("plain", "core_seconds")
    verdict = (
        f"orchestration: the flow adds {100 * added['core_seconds']:+.1f}% to the plain functions' "
        f"{median('plain', 'core_seconds'):.0f} core seconds ({extra:.1f} s; goal {100 * GOAL:.0f}%: "
        f"{'met' if added['core_seconds'] <= GOAL else 'missed'}) and {100 * added['seconds']:+.1f}% to "
        f"their {median('plain', 'seconds'):.0f} s of the wall, on {characters:,} characters; beside it "
        f"{median('flow', 'import_seconds'):.1f} s of imports, and {server_seconds:.0f} s where a server "
        "has to begin"
    )
    write_result("orchestration", verdict, {"characters": characters, "added": added, "runs": rows})


if __name__ == "__main__":
    main()
