"""Instances a second from shards through dynamic masking into packed batches, on one core.

    python -m benchmarks.batching [--source FILE ...] [--characters N] [--repeats N]

The shards are a corpus as a refresh makes it. The seconds are the process's, of all its threads, so that work
which pyarrow does beside the reading thread counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import torch

from albert.batching import DataState, InstanceStream, Phase, TrainingData
from albert.model import Batch
from benchmarks.support.corpora import (
    corpus_options,
    load_sentences,
    make_vocabulary,
    refresh_settings,
    write_corpus,
)
from benchmarks.support.results import met, write_result
from data.refresh import refresh

GOAL = 200_000  # instances/s/core of up to 128 tokens
BATCH_TOKENS = 4096


def training_batches(shards: Sequence[Path], batch_tokens: int) -> Iterator[Batch]:
    """Yield batches as training gets them, without end."""
    stream = InstanceStream(shards, batch_tokens=batch_tokens)
    steps = TrainingData([stream], [Phase(1, (1.0,))]).steps(DataState.start(1))
    return (batch for step in steps for batch in step.batches)


def measure_once(shards: list[Path]) -> tuple[int, int, float]:
    """Read one epoch: its instances, tokens, and seconds."""
    rows = sum(pq.read_metadata(shard).num_rows for shard in shards)
    instances = tokens = 0
    began = time.process_time()
    for batch in training_batches(shards, BATCH_TOKENS):
        instances += batch.sequences
        tokens += batch.tokens
        if instances == rows:
            break
    return instances, tokens, time.process_time() - began


def main() -> None:
    parser = corpus_options("batching", __doc__, characters=8_000_000)
    parser.add_argument("--repeats", type=int, default=9, help="[%(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sentences = load_sentences(options.source)
        vocabulary = Path(options.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        source, workspace = folder / "raw", folder / "workspace"
        write_corpus(source, sentences, options.characters, file_characters=options.characters // 16)
        refresh(refresh_settings(source, vocabulary, workspace))
        shards = sorted((workspace / "shards" / "c").glob("*.parquet"))
        runs = [measure_once(shards) for _ in range(options.repeats)]
    instances, tokens, _ = runs[0]
    rate, length = instances / min(seconds for *_, seconds in runs), tokens / instances
    verdict = (
        f"batching: {rate:,.0f} instances/s/core of {length:.0f} tokens (goal {GOAL:,}: {met(rate >= GOAL)})"
    )
    about = {"batch_tokens": BATCH_TOKENS, "instances": instances, "mean_length": length}
    write_result("batching", verdict, {**about, "instances_per_second": rate})


if __name__ == "__main__":
    main()
