"""The instances of a corpus as a dataset for training code of your own, row by row. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from data.instances import count_row_groups, read_rows


class CorpusDataset(IterableDataset[dict[str, Any]]):
    """Instances in an order that depends on the seed and the epoch alone.

    Every process (rank) and every worker of its DataLoader gets a part of them; parts of a small corpus
    differ in size. Call `set_epoch` before each epoch.
    """

    def __init__(self, shards: Sequence[Path], *, below: int, seed: int = 0):
        self.row_groups = [(path, group) for path in shards for group in range(count_row_groups(path))]
        self.below = below  # documents with a side below it are held out
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        part, parts = _part()
        order = np.random.default_rng([self.seed, self.epoch])
        few = len(self.row_groups) < parts  # then every part takes some rows of each
        for number, at in enumerate(order.permutation(len(self.row_groups)).tolist()):
            if not few and number % parts != part:
                continue
            rows = read_rows(*self.row_groups[at], below=self.below)
            shuffled = np.random.default_rng([self.seed, self.epoch, at]).permutation(len(rows)).tolist()
            for row in shuffled[part::parts] if few else shuffled:
                yield {
                    name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                    for name, value in rows[row].items()
                }


def _part() -> tuple[int, int]:
    """The number of this worker among all workers of all ranks, and how many there are."""
    rank, ranks = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if worker := get_worker_info():
        return rank * worker.num_workers + worker.id, ranks * worker.num_workers
    return rank, ranks
