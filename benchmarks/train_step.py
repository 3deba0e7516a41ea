"""Tokens a second of pretraining steps on a CPU, against transformers' ALBERT, turn by turn in one process.

    python -m benchmarks.train_step [--only NAME ...] [--rounds N] [--pairs FILE.tsv]

`tiny` and `base` are steps (forward, backward, clipping, AdamW) on sequences of one length, every token real.
`pairs` are steps of tiny on short sentence pairs with what brings the batches: here shards, sorted by length
and masked as they are read; there a DataLoader and transformers' collator, which pads. The rival runs with
both its attentions in fp32 and bf16, and the best counts. `start` is the time a new process takes to the end
of its first step. `ceiling` is what bf16 matrix products of the model's shapes reach here by themselves.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from albert.model import AlbertConfig, PretrainingModel
from benchmarks.batching import training_batches
from benchmarks.support.alternating import Rates, Work, alternate, keep_best
from benchmarks.support.corpora import load_sentences, make_vocabulary
from benchmarks.support.first_step import BATCH_TOKENS
from benchmarks.support.results import met, write_result
from benchmarks.support.steps import MASKED_SHARE, ceiling, random_batch, training_flops, training_step
from data.instances import (
    MaskRule,
    build_instances,
    find_objective,
    instance_table,
    mask_vocabulary,
    tokenize_documents,
    write_table,
)
from data.refresh.build import segmenter
from data.sources import document_id
from data.tokenization import load_tokenizer

GOALS = {"tiny": 10.0, "base": 5.0, "pairs": 20.0}
START_GOAL = 5.0  # seconds
LENGTH = 128
STEPS = 4  # of ours per turn on pairs, which are quick


def _several(step: Callable[[], object], amount: float, times: int) -> Work:
    def run() -> float:
        for _ in range(times):
            step()
        return amount * times

    return run


def measure_model(name: str, sequences: int, rounds: int) -> dict[str, Rates]:
    """Measure tokens per second of ours and the rival, and operations per second of "products"."""
    from benchmarks.support.transformers_albert import WAYS, padded, their_step

    config = AlbertConfig.preset(name, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = random_batch([LENGTH] * sequences, config.vocab_size)
    step, inputs = training_step(PretrainingModel(config)), padded(batch)
    works = {"jixu": _several(lambda: step(batch), batch.tokens, 2)}
    for way in WAYS:
        theirs = their_step(config, way)
        works[way] = _several(lambda run=theirs: run(**inputs), batch.tokens, 1)
    works = keep_best(works, "jixu")
    return alternate({**works, "products": ceiling(config, batch.tokens)}, rounds)


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
    tokens = tokenize_documents(ids, text, lengths, np.full(len(pairs), 2), tokenizer, LENGTH - 3)
    objective = find_objective("albert")
    instances = build_instances(tokens, tokenizer, objective, max_seq_length=LENGTH, sop=True)
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


def _loaded(batches: Iterator[dict], step: Callable[..., object]) -> Work:
    def run() -> float:
        batch = next(batches)
        step(**batch)
        return float(batch["attention_mask"].sum())

    return run


def measure_pairs(
    pairs: Sequence[tuple[str, str]], vocabulary: Path, rounds: int
) -> tuple[dict[str, Rates], dict[str, float]]:
    """Measure real tokens per second with data loading, and our share of time spent waiting for batches."""
    from benchmarks.support.transformers_albert import WAYS, loader, their_step

    config = AlbertConfig.preset("tiny")
    waited: list[float] = []
    worked: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        shard = write_pairs(pairs, vocabulary, Path(temporary))
        batches = training_batches([shard], BATCH_TOKENS)
        step = training_step(PretrainingModel(config))

        def ours() -> float:
            tokens = 0
            for _ in range(STEPS):
                began = time.perf_counter()
                batch = next(batches)
                loaded = time.perf_counter()
                step(batch)
                waited.append(loaded - began)
                worked.append(time.perf_counter() - began)
                tokens += batch.tokens
            return tokens

        works: dict[str, Work] = {"jixu": ours}
        batch_size = next(batches).sequences
        for way in WAYS:
            works[way] = _loaded(loader(pairs, str(vocabulary), batch_size), their_step(config, way))
        rates = alternate(keep_best(works, "jixu"), rounds)
    share = sum(waited[STEPS:]) / sum(worked[STEPS:])  # the first turn, which does not count, opens the shard
    return rates, {"sequences": batch_size, "wait_share": share, "longest_wait_seconds": max(waited[STEPS:])}


def measure_start(pairs: Sequence[tuple[str, str]], vocabulary: Path, rounds: int) -> dict[str, object]:
    """Time a process from its start, imports included, to the end of its first step."""
    seconds, parts = [], []
    with tempfile.TemporaryDirectory() as temporary:
        shard = write_pairs(pairs[:3000], vocabulary, Path(temporary))
        for _ in range(rounds):
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.support.first_step", str(shard)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            seconds.append(time.perf_counter() - began)
            parts.append(json.loads(done.stdout))
    processor = [part["processor"] for part in parts]
    middle = {"seconds": statistics.median(seconds), "processor_seconds": statistics.median(processor)}
    return {**middle, "of_round": seconds, "parts": parts}


def compare(name: str, rates: dict[str, Rates]) -> tuple[str, dict[str, object]]:
    """Write a goal's line and record."""
    ours = rates["jixu"]
    best = max((way for way in rates if way not in ("jixu", "products")), key=lambda w: rates[w].median)
    times, lowest, highest = ours.times(rates[best])
    by_processor = ours.times_by_processor(rates[best])
    line = (
        f"{name}: {ours.median:,.0f} tokens/s, {times:.1f}x transformers' {rates[best].median:,.0f} ({best}; "
        f"{lowest:.1f}x to {highest:.1f}x over the rounds, {by_processor:.1f}x by processor time): "
        f"goal {GOALS[name]:g}x {met(times >= GOALS[name])}"
    )
    record = {"times": times, "times_by_processor": by_processor, "goal": GOALS[name], "rival": best}
    return line, {**record, "tokens_per_second": {who: rate.to_record() for who, rate in rates.items()}}


def share_of_ceiling(name: str, sequences: int, rates: dict[str, Rates]) -> tuple[str, dict[str, float]]:
    """Compare a step with the tokens per second that its matrix products alone would allow."""
    config, tokens = AlbertConfig.preset(name), sequences * LENGTH
    masked = int(MASKED_SHARE * tokens)
    flops = training_flops(config, [LENGTH] * sequences, masked, masked + sequences) / tokens
    reached = rates["jixu"].times_by_processor(rates["products"])
    line = (
        f"{name}: {reached * flops:.0%} of the arithmetic limit, by processor time: {flops / 1e6:.1f} MFLOP "
        f"a token, products of these shapes reach {rates['products'].median / 1e12:.2f} TFLOP/s, "
        f"{rates['products'].median / flops:,.0f} tokens/s"
    )
    return line, {"share": reached * flops, "flops_per_token": flops}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step", description=__doc__)
    names = ["tiny", "base", "pairs", "start"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--sequences", type=int, default=32, help="to a batch of tiny and base [%(default)s]")
    parser.add_argument("--pairs", type=Path, help="TSV with a header [made of the samples]")
    options = parser.parse_args(arguments)
    lines, results = [], {}
    for name in ("tiny", "base"):
        if name in options.only:
            rates = measure_model(name, options.sequences, options.rounds)
            line, results[name] = compare(name, rates)
            limit, results[name]["arithmetic_limit"] = share_of_ceiling(name, options.sequences, rates)
            lines += [line, limit]
    pairs = read_pairs(options.pairs)
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary = make_vocabulary([a + b for a, b in pairs], Path(temporary))
        if "pairs" in options.only:
            rates, more = measure_pairs(pairs, vocabulary, options.rounds)
            line, results["pairs"] = compare("pairs", rates)
            results["pairs"] |= more
            lines += [line, f"pairs: {more['wait_share']:.1%} of our time is waiting for a batch"]
        if "start" in options.only:
            results["start"] = measure_start(pairs, vocabulary, options.rounds)
            seconds, processor = (results["start"][name] for name in ("seconds", "processor_seconds"))
            lines.append(
                f"start: {seconds:.1f} s to the first step ({processor:.1f} s of processor time): "
                f"goal {START_GOAL:g} s {met(seconds < START_GOAL)}"
            )
    about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    about |= {name: torch.cpu.get_capabilities().get(name) for name in ("amx_bf16", "avx512_bf16")}
    write_result(
        "train_step", "\n".join(lines), {**about, "sequences": options.sequences, "results": results}
    )


if __name__ == "__main__":
    main()
