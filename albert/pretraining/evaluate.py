"""Losses and accuracies on documents that are never trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from albert.batching import InstanceStream, rows_within
from albert.evaluation import bigram_loss, changes_of, scores_of, seen_share, sums_of
from albert.model import PretrainingModel
from albert.runtime import Process
from data.errors import InputError
from data.files import replacing


def evaluate(
    model: PretrainingModel,
    streams: Mapping[str, InstanceStream],
    tokens: int,
    process: Process,
    *,
    full_tokens: int = 0,
    before: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Score each corpus's held-out documents, always the same ones with the same masks.

    The run's own corpus is named "" in `streams` and its keys have no suffix ("held_out_mlm_loss"); the keys
    of others do ("held_out_mlm_loss@general"). With `full_tokens` there are also scores on that number
    of tokens; their keys begin with "full_". Batches are divided among the processes.

    Also returns each corpus's sums, [R, 6]; with those from `before` there are the changes since, each on
    the tokens of its scores.
    """
    result: dict[str, float] = {}
    measured: dict[str, np.ndarray] = {}
    for name, stream in streams.items():
        suffix = f"@{name}" if name else ""
        drawn = stream.held_out(max(tokens, full_tokens))
        if drawn is None:
            raise InputError(f"no held-out document in {name or 'the corpus'}: give it more documents")
        part = (process.rank, process.world_size)
        sums = process.sum(sums_of(model, stream, drawn, part=part)).cpu().numpy()
        measured[name], old = sums, (before or {}).get(name, sums[:0])
        few = rows_within(drawn.lengths, tokens)
        for prefix, count in (("", few), ("full_", len(drawn) if full_tokens else 0)):
            if not count:
                continue
            documents = drawn.doc_keys[:count]
            scores = scores_of(sums[:count], documents)
            if len(old) >= count:  # fewer tokens are the first of more
                scores |= changes_of(old[:count], sums[:count], documents)
            result |= {f"{prefix}held_out_{key}{suffix}": value for key, value in scores.items()}
    return result, measured


def save_sums(path: Path, sums: Mapping[str, np.ndarray]) -> None:
    """Keep the sums of each corpus's instances in a file, for `load_sums`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **{f"sums@{name}": one for name, one in sums.items()})


def load_sums(path: Path) -> dict[str, np.ndarray]:
    """The sums of each corpus's instances; none if the file is gone."""
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return {name.removeprefix("sums@"): file[name] for name in file.files}


def baselines_of(streams: Mapping[str, InstanceStream], tokens: int) -> dict[str, float]:
    """Baselines for each corpus's held-out scores.

    The share of their 13-grams that the run's training text holds too, and the loss on the same masks of a
    bigram count model of the corpus's own training text.
    """
    found: dict[str, float] = {}
    for name, stream in streams.items():
        suffix = f"@{name}" if name else ""
        if instances := stream.held_out(tokens):
            found[f"held_out_seen{suffix}"] = seen_share(instances, list(streams.values()))
            found[f"held_out_bigram_loss{suffix}"] = bigram_loss(stream, instances)
    return found
