"""How time and memory grow with the corpus: 1x, 4x and 16x, and with --large one of 5 GB.

    python -m benchmarks.scale [--source FILE ...] [--characters N] [--large]

Each size is refreshed into a workspace of its own by a process of its own; memory is the most that any worker
process held, and the most that the process that plans and commits did.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.data_prep import make_vocabulary
from benchmarks.support.corpora import load_sentences, source_names, write_corpus
from benchmarks.support.results import write_result
from data.refresh import RefreshSettings, refresh

EXPONENT_GOAL, MEMORY_GOAL = 1.05, 1024  # MiB
LARGE_BYTES = 5 * 10**9


def run_one(source: str, vocabulary: str, workspace: str, workers: int) -> dict[str, float]:
    """Refresh in this process and workers; seconds, and MiB of the largest worker and of this process."""
    settings = RefreshSettings(
        corpus="c", source=(source,), workspace=Path(workspace), tokenizer=vocabulary, workers=workers
    )
    began = time.perf_counter()
    result = refresh(settings)
    seconds = time.perf_counter() - began
    peak = {
        name: resource.getrusage(who).ru_maxrss / 1024
        for name, who in (("worker", resource.RUSAGE_CHILDREN), ("planner", resource.RUSAGE_SELF))
    }
    return {
        "seconds": seconds,
        "documents": result.documents,
        "instances": result.instances,
        "tokens": result.tokens,
        "worker_mib": peak["worker"],
        "planner_mib": peak["planner"],
    }


def measure_size(source: Path, vocabulary: Path, workspace: Path, workers: int) -> dict[str, float]:
    arguments = ["--run", str(source), str(vocabulary), str(workspace), str(workers)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log time over log size, by least squares."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )


def main() -> None:
    if "--run" in sys.argv:
        source, vocabulary, workspace, workers = sys.argv[2:]
        print(json.dumps(run_one(source, vocabulary, workspace, int(workers))))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character]")
    parser.add_argument("--characters", type=int, default=10_000_000, help="of the 1x corpus [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="[%(default)s]")
    parser.add_argument(
        "--large", action="store_true", help="also a corpus of 5 GB; takes about half an hour"
    )
    parser.add_argument("--bytes", type=int, default=LARGE_BYTES, help="of the large corpus [%(default)s]")
    given = parser.parse_args()
    sentences = load_sentences(given.source)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        sizes = {"large": given.bytes // 3} if given.large else {}
        sizes = {f"{n}x": n * given.characters for n in (1, 4, 16)} | sizes
        for name, wanted in sizes.items():
            source = folder / "raw"
            written = write_corpus(source, sentences, wanted)
            row = measure_size(source, vocabulary, folder / "workspace", given.workers)
            rows[name] = {"characters": written, "characters_per_second": written / row["seconds"], **row}
            print(name, json.dumps(rows[name]), file=sys.stderr)
            for used in (source, folder / "workspace"):
                subprocess.run(["rm", "-rf", str(used)], check=True)
    grows = exponent([(rows[n]["characters"], rows[n]["seconds"]) for n in ("1x", "4x", "16x")])
    most = max(row["worker_mib"] for row in rows.values())
    verdict = (
        f"scale: time grows as size to the {grows:.3f} (goal {EXPONENT_GOAL}: "
        f"{'met' if grows <= EXPONENT_GOAL else 'missed'}), a worker held at most {most:,.0f} MiB (goal "
        f"{MEMORY_GOAL:,}: {'met' if most <= MEMORY_GOAL else 'missed'}), "
        f"{rows['16x']['worker_mib'] - rows['4x']['worker_mib']:+,.0f} MiB from 4x to 16x"
    )
    if given.large:
        large = rows["large"]
        verdict += (
            f"; {large['characters']:,.0f} characters in {large['seconds'] / 60:.0f} min, "
            f"{large['worker_mib']:,.0f} MiB a worker, {large['planner_mib']:,.0f} MiB to plan"
        )
    names = source_names(given.source)
    result = {"sources": names, "workers": given.workers, "sizes": rows, "exponent": grows}
    write_result("scale", verdict, result)


if __name__ == "__main__":
    main()
