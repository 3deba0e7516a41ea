"""Instances a second from shards through dynamic masking into packed batches, on one core.

    python -m benchmarks.batching [--source FILE ...] [--characters N] [--repeats N]

Two sets of shards are read: a corpus as a refresh makes it, whose instances of at most 128 tokens are shorter
on average (one in ten aims at a shorter length, and documents end), and those of its instances that have at
least 120 tokens, stored by themselves. The seconds are the process's, of all its threads, so that work which
pyarrow does beside the reading thread counts; the wall clock stands beside them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from albert.batching import DataState, InstanceStream, Phase, TrainingData
from albert.model import Batch
from benchmarks.support.corpora import load_sentences, make_vocabulary, write_corpus
from benchmarks.support.results import met, write_result
from data.instances import write_table
from data.refresh import RefreshSettings, refresh

GOAL = 200_000  # instances/s/core of length 128
BATCH_TOKENS = 4096
FULL_LENGTH = 120  # tokens


def keep_full(shards: list[Path], folder: Path) -> list[Path]:
    """Write shards of the instances that fill their length."""
    folder.mkdir()
    tables = [pq.read_table(shard) for shard in shards]
    full = [t.filter(pc.greater_equal(pc.list_value_length(t["input_ids"]), FULL_LENGTH)) for t in tables]
    return [write_table(table, folder) for table in full]


def training_batches(shards: Sequence[Path], batch_tokens: int) -> Iterator[Batch]:
    """Yield batches as training gets them, without end."""
    stream = InstanceStream(shards, batch_tokens=batch_tokens)
    steps = TrainingData([stream], [Phase(1, (1.0,))]).steps(DataState.start(1))
    return (batch for step in steps for batch in step.batches)


def measure_once(shards: list[Path]) -> dict[str, float]:
    """Count and time one epoch."""
    rows = sum(pq.read_metadata(shard).num_rows for shard in shards)
    instances = tokens = 0
    began, began_wall = time.process_time(), time.perf_counter()
    for batch in training_batches(shards, BATCH_TOKENS):
        instances += batch.sequences
        tokens += batch.tokens
        if instances == rows:
            break
    seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
    return {"instances": instances, "tokens": tokens, "seconds": seconds, "wall_seconds": wall}


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    seconds = [run["seconds"] for run in runs]
    instances, tokens = runs[0]["instances"], runs[0]["tokens"]
    return {
        "instances": instances,
        "mean_length": tokens / instances,
        "instances_per_second": instances / min(seconds),
        "instances_per_second_median": instances / statistics.median(seconds),
        "instances_per_second_by_the_wall": instances / min(run["wall_seconds"] for run in runs),
        "tokens_per_second": tokens / min(seconds),
        "nanoseconds_per_token": min(seconds) / tokens * 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character]")
    parser.add_argument("--characters", type=int, default=8_000_000, help="of made-up text [%(default)s]")
    parser.add_argument("--repeats", type=int, default=9, help="[%(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sentences = load_sentences(options.source)
        vocabulary = Path(options.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        source, workspace = folder / "raw", folder / "workspace"
        write_corpus(source, sentences, options.characters, file_characters=options.characters // 16)
        refresh(
            RefreshSettings(
                corpus="c", source=(str(source),), workspace=workspace, tokenizer=str(vocabulary), workers=1
            )
        )
        shards = sorted((workspace / "shards" / "c").glob("*.parquet"))
        sets = {"as_made": shards, "full_length": keep_full(shards, folder / "full")}
        runs = {name: [] for name in sets}
        for _ in range(options.repeats):
            for name, members in sets.items():
                runs[name].append(measure_once(members))
    results = {name: summary(of_set) for name, of_set in runs.items()}
    parts = [
        f"{r['instances_per_second']:,.0f} instances/s/core of {r['mean_length']:.0f} tokens "
        f"({met(r['instances_per_second'] >= GOAL)})"
        for r in results.values()
    ]
    verdict = f"batching (goal {GOAL:,}): {', '.join(parts)}"
    write_result(
        "batching",
        verdict,
        {"batch_tokens": BATCH_TOKENS, "load_average": os.getloadavg()[0], **results},
    )


if __name__ == "__main__":
    main()
