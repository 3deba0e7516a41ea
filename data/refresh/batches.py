"""The work of a refresh in batches, each one task: sources to read, shards to build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from data.catalog import Source
from data.refresh.build import Piece
from data.refresh.plan import Plan, SourceFile
from data.storage import is_remote

BATCH_WEIGHT = 64 << 20  # bytes that one task reads at most: ten seconds
BATCH_SHARDS = 8  # that one task builds at most: ten seconds
FILE_WEIGHT = 1 << 16  # bytes added for each file: opening it, or finding it unchanged, takes time too
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Neighbouring items that one task works on."""

    label: str  # names the task in the UI
    items: tuple[T, ...]


def reading_batches(plan: Plan, workers: int) -> list[Batch[tuple[SourceFile, Plan]]]:
    """Group all files in order, small neighbours together: a folder may hold a hundred thousand.

    Each file comes with the part of the plan that reading it needs, which does not grow with the corpus.
    """
    known = {source.uri: source for source in plan.current_sources}
    small = building_plan(plan)
    items = [
        (file, replace(small, current_sources=(known[file.place],)) if file.place in known else small)
        for file in plan.files
    ]
    weights = [_reading_weight(file, known.get(file.place)) for file in plan.files]
    groups = _group(items, weights, workers, BATCH_WEIGHT)
    return [Batch(_label(group[0][0].name, len(group)), tuple(group)) for group in groups]


def building_batches(corpus: str, pieces: Sequence[Piece], workers: int) -> list[Batch[Piece]]:
    """Group the pieces of a corpus in order."""
    groups = _group(pieces, [1] * len(pieces), workers, BATCH_SHARDS)
    ranges = [dict.fromkeys((group[0].number + 1, group[-1].number + 1)) for group in groups]
    labels = [f"{corpus} {'-'.join(map(str, both))}/{len(pieces)}" for both in ranges]
    return [Batch(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


def building_plan(plan: Plan) -> Plan:
    """The part of the plan that building a shard needs."""
    return replace(plan, files=(), current_sources=(), current_shards=())


def _group(items: Sequence[T], weights: Sequence[int], workers: int, most: int) -> list[list[T]]:
    """Group neighbours, larger groups first: each weighs about half of a worker's share of the rest.

    Every task costs the orchestrator time, and small tasks at the end keep all workers busy until everything
    is done (guided self-scheduling: Polychronopoulos and Kuck, 1987).
    """
    groups: list[list[T]] = []
    left, weight, enough = sum(weights), 0.0, 0.0
    for item, item_weight in zip(items, weights, strict=True):
        if weight >= enough:
            groups.append([])
            weight, enough = 0.0, min(most, left / (2 * workers))
        groups[-1].append(item)
        weight += item_weight
        left -= item_weight
    return groups


def _reading_weight(file: SourceFile, known: Source | None) -> int:
    if is_remote(file.uri):
        return BATCH_WEIGHT  # asking for its size may take as long as reading it
    try:
        size = os.stat(file.uri).st_size
    except OSError:  # left to the reader to report
        size = 0
    return FILE_WEIGHT + (0 if known and known.size == size else size)


def _label(first: str, files: int) -> str:
    return f"{first} and {files - 1:,} more" if files > 1 else first
