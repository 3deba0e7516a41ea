"""The work of a refresh in batches, each one task: sources to read, shards to build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from data.refresh.build import Piece
from data.refresh.plan import SourceFile
from data.storage import base_name, is_remote

BATCH_WEIGHT = 64 << 20  # bytes that one task reads at most: ten seconds
BATCH_SHARDS = 8  # that one task builds at most: ten seconds
FILE_WEIGHT = 1 << 16  # bytes added for each file: opening it, or finding it unchanged, takes time too
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Neighbouring items that one task works on."""

    label: str  # names the task in the UI
    items: tuple[T, ...]


def reading_batches(files: Sequence[SourceFile], workers: int) -> list[Batch[SourceFile]]:
    """Group files in order, small neighbours together: a folder may hold a hundred thousand."""
    groups = _group(files, list(map(_reading_weight, files)), workers, BATCH_WEIGHT)
    more = [f" and {len(group) - 1:,} more" if len(group) > 1 else "" for group in groups]
    labels = [base_name(group[0].uri) + rest for group, rest in zip(groups, more, strict=True)]
    return [Batch(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


def building_batches(corpus: str, pieces: Sequence[Piece], workers: int) -> list[Batch[Piece]]:
    """Group the pieces of a corpus in order."""
    groups = _group(pieces, [1] * len(pieces), workers, BATCH_SHARDS)
    ranges = [dict.fromkeys((group[0].number + 1, group[-1].number + 1)) for group in groups]
    labels = [f"{corpus} {'-'.join(map(str, both))}/{len(pieces)}" for both in ranges]
    return [Batch(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


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


def _reading_weight(file: SourceFile) -> int:
    if is_remote(file.uri):
        return BATCH_WEIGHT  # asking for its size may take as long as reading it
    size = os.path.getsize(file.uri) if os.path.isfile(file.uri) else 0
    return FILE_WEIGHT + (0 if file.previous and file.previous.size == size else size)
