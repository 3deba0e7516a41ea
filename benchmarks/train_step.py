"""Tokens a second of pretraining steps on a CPU, against transformers' ALBERT, turn by turn in one process.

    python -m benchmarks.train_step [--only NAME ...] [--rounds N] [--pairs FILE.tsv]

`tiny` and `base` are steps (forward, backward, clipping, AdamW) on sequences of one length, every token real.
`pairs` are steps of tiny on short sentence pairs with what brings the batches: here shards, sorted by length
and masked as they are read; there a DataLoader and transformers' collator, which pads. The rival runs with
both its attentions in fp32 and bf16, and the best counts.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from albert.batching import DataState, InstanceStream, Phase, TrainingData
from albert.model import AlbertConfig, Batch, PretrainingModel
from benchmarks.support.alternating import Rates, Work, alternate, keep_best
from benchmarks.support.corpora import load_sentences, make_vocabulary
from benchmarks.support.results import command, met, write_result
from benchmarks.support.steps import random_batch, training_step
from data.instances import (
    OBJECTIVES,
    MaskRule,
    build_instances,
    instance_table,
    mask_vocabulary,
    tokenize_documents,
    write_table,
)
from data.refresh.build import segmenter
from data.sources import document_id
from data.tokenization import load_tokenizer

Measured = Literal["tiny", "base", "pairs"]
GOALS: dict[str, float] = {"tiny": 10.0, "base": 5.0, "pairs": 20.0}
LENGTH = 128
BATCH_TOKENS = 4096  # of pairs
STEPS = 4  # of ours per turn on pairs, which are quick


def _several(step: Callable[..., object], batches: Iterator[Batch], times: int) -> Work:
    def run() -> float:
        tokens = 0
        for batch in islice(batches, times):
            step(batch)
            tokens += batch.tokens
        return tokens

    return run


def _padded(step: Callable[..., object], batches: Iterator[dict[str, Tensor]], tokens: int = 0) -> Work:
    """Of batches with this many tokens, or as many as their masks say."""

    def run() -> float:
        batch = next(batches)
        step(**batch)
        return tokens or float(batch["attention_mask"].sum())

    return run


def measure_model(name: str, sequences: int, rounds: int) -> dict[str, Rates]:
    """Measure tokens per second of ours and the rival."""
    from benchmarks.support.transformers_albert import WAYS, padded, their_step

    config = AlbertConfig.preset(name, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = random_batch([LENGTH] * sequences, config.vocab_size)
    inputs = padded(batch)
    works = {"jixu": _several(training_step(PretrainingModel(config)), repeat(batch), 2)}
    for way in WAYS:
        works[way] = _padded(their_step(config, way), repeat(inputs), batch.tokens)
    return alternate(keep_best(works, "jixu"), rounds)


def read_pairs(path: Path | None) -> list[tuple[str, str]]:
    """Sentence pairs: the first two columns of a TSV file with a header, or neighbours in the samples, cut to
    the 5 to 17 characters of such questions.
    """
    if path is not None:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        return [(row[0], row[1]) for row in rows]
    rng = np.random.default_rng(0)
    cut = [s[: int(n)] for s in load_sentences(()) for n in [rng.integers(5, 18)] if len(s) >= 5]
    return list(zip(cut[:-1], cut[1:], strict=True))


def write_pairs(pairs: Sequence[tuple[str, str]], vocabulary: Path, folder: Path) -> Path:
    """Write a shard with one instance per pair."""
    tokenizer = load_tokenizer(vocabulary)
    text = "".join(f"{a}\n{b}\n" for a, b in pairs)
    lengths = segmenter(()).lengths(text)
    ids = [document_id(f"{number} {a} {b}") for number, (a, b) in enumerate(pairs)]
    tokens = tokenize_documents(text, lengths, np.full(len(pairs), 2), tokenizer, LENGTH - 3)
    objective = OBJECTIVES["albert"]
    instances = build_instances(tokens, ids, tokenizer, objective, max_seq_length=LENGTH, sop=True)
    table = instance_table(
        instances,
        ids,
        np.zeros(len(ids), dtype=np.uint32),
        mask_vocabulary(tokenizer),
        MaskRule(),
        max_seq_length=LENGTH,
        seed=0,
    )
    return write_table(table, folder)


def training_batches(shard: Path) -> Iterator[Batch]:
    """Yield batches as training gets them, without end."""
    stream = InstanceStream([shard], batch_tokens=BATCH_TOKENS)
    steps = TrainingData([stream], [Phase(1, (1.0,))]).steps(DataState.start(1))
    return (batch for step in steps for batch in step.batches)


def measure_pairs(pairs: Sequence[tuple[str, str]], vocabulary: Path, rounds: int) -> dict[str, Rates]:
    """Measure real tokens per second with data loading."""
    from benchmarks.support.transformers_albert import WAYS, loader, their_step

    config = AlbertConfig.preset("tiny")
    with tempfile.TemporaryDirectory() as temporary:
        shard = write_pairs(pairs, vocabulary, Path(temporary))
        batches = training_batches(shard)
        works = {"jixu": _several(training_step(PretrainingModel(config)), batches, STEPS)}
        batch_size = next(batches).sequences
        for way in WAYS:
            works[way] = _padded(their_step(config, way), loader(pairs, str(vocabulary), batch_size))
        return alternate(keep_best(works, "jixu"), rounds)


def compare(name: str, rates: dict[str, Rates]) -> tuple[str, dict[str, object]]:
    """Write a goal's line and record."""
    ours = rates["jixu"]
    best = max(rates.keys() - {"jixu"}, key=lambda way: rates[way].median)
    times, lowest, highest = ours.times(rates[best])
    line = (
        f"{name}: {ours.median:,.0f} tokens/s, {times:.1f}x transformers' {rates[best].median:,.0f} ({best}; "
        f"{lowest:.1f}x to {highest:.1f}x over the rounds): goal {GOALS[name]:g}x {met(times >= GOALS[name])}"
    )
    record = {"times": times, "goal": GOALS[name], "rival": best}
    return line, {**record, "tokens_per_second": {who: rate.to_record() for who, rate in rates.items()}}


def main(
    *, only: tuple[Measured, ...] = get_args(Measured), rounds: int = 5, sequences: int = 32,
    pairs: Path | None = None,
) -> None:  # fmt: skip
    """Run the benchmark.

    Args:
        sequences: To a batch of tiny and base.
        pairs: TSV with a header; by default made of the samples.
    """
    rates: dict[str, dict[str, Rates]] = {}
    for name in ("tiny", "base"):
        if name in only:
            rates[name] = measure_model(name, sequences, rounds)
    if "pairs" in only:
        texts = read_pairs(pairs)
        with tempfile.TemporaryDirectory() as temporary:
            vocabulary = make_vocabulary([a + b for a, b in texts], Path(temporary))
            rates["pairs"] = measure_pairs(texts, vocabulary, rounds)
    compared = {name: compare(name, of_name) for name, of_name in rates.items()}
    verdict = "\n".join(line for line, _ in compared.values())
    results = {name: record for name, (_, record) in compared.items()}
    about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    about |= {name: torch.cpu.get_capabilities().get(name) for name in ("amx_bf16", "avx512_bf16")}
    write_result("train_step", verdict, {**about, "sequences": sequences, "results": results})


if __name__ == "__main__":
    command(main)
