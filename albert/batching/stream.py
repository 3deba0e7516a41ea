"""Packed batches from instance shards, sorted by length and masked as they are read.

The order is a pure function of the seed. An epoch is a permutation of the shards' row groups, read a window
at a time; a window's instances are sorted by length with a little noise, cut into batches by tokens, and the
batches shuffled. Memory holds one window, whatever the corpus. A `Cursor` is the place in the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from albert.batching.packing import Instances, pack_batch
from albert.model import IGNORED, Batch
from data.errors import InputError
from data.hashing import mix
from data.instances import (
    STATIC_EPOCH,
    MaskRule,
    ShardInfo,
    document_keys,
    is_held_out,
    list_values,
    read_info,
    read_shard,
    row_group_tokens,
)

WINDOW_ROW_GROUPS = 4
_DRAWING = np.uint64(0x64726177)  # makes the order of held-out instances independent of other hashes
_COLUMNS = ["instance_id", "doc_id", "side", "input_ids", "segment_b_start", "word_starts", "sop_label"]
_STATIC_COLUMNS = ["masked_positions", "masked_input_ids", "masked_labels"]


class Cursor(NamedTuple):
    """The place in the data: the batch that is read next."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


START = Cursor()


def _to_instances(table: pa.Table) -> Instances:
    input_ids, offsets = list_values(table["input_ids"])
    flags = table["word_starts"].combine_chunks().buffers()[2]
    word_starts = np.frombuffer(flags, np.uint8, len(input_ids)) == ord("1")
    digits = table["doc_id"].combine_chunks().buffers()[2]
    sop = table["sop_label"].cast(pa.int64()).fill_null(IGNORED).to_numpy()
    static = None
    if _STATIC_COLUMNS[0] in table.column_names:
        (positions, at), (ids, _), (labels, _) = (list_values(table[name]) for name in _STATIC_COLUMNS)
        static = (at, positions, ids, labels)
    return Instances(
        table["instance_id"].to_numpy(),
        document_keys(memoryview(digits)[: 16 * len(table)]),
        table["side"].to_numpy(),
        input_ids,
        offsets,
        table["segment_b_start"].to_numpy(),
        word_starts,
        sop,
        static,
    )


def token_batches(lengths: np.ndarray, batch_tokens: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Group rows of similar length into batches of at most `batch_tokens` tokens, in random order."""
    noise = rng.uniform(0, 8, len(lengths))
    order = np.argsort(lengths + noise, kind="stable")
    ends = np.cumsum(lengths[order])
    batches, begin, before = [], 0, 0
    while begin < len(order):
        end = max(int(ends.searchsorted(before + batch_tokens, side="right")), begin + 1)
        batches.append(order[begin:end])
        begin, before = end, int(ends[end - 1])
    return [batches[i] for i in rng.permutation(len(batches))]


def held_out_rows(instances: Instances, batch_tokens: int) -> list[np.ndarray]:
    """Divide held-out instances into batches, whatever the run's seed."""
    return token_batches(instances.lengths, batch_tokens, np.random.default_rng(0))


def rows_within(lengths: np.ndarray, max_tokens: int) -> int:
    """How many of the first rows have `max_tokens` tokens, the last row being counted in."""
    return min(int(np.cumsum(lengths).searchsorted(max_tokens)) + 1, len(lengths))


class Planned(NamedTuple):
    """A batch before it is packed."""

    instances: Instances
    rows: np.ndarray
    after: Cursor  # the place in the data after it, in the same epoch

    @property
    def tokens(self) -> int:
        return int(self.instances.lengths[self.rows].sum())

    @property
    def is_ordered(self) -> bool:
        """Whether a sequence has an order label."""
        return bool((self.instances.sop_labels[self.rows] != IGNORED).any())


class InstanceStream:
    """Reads batches from shards: endlessly for training, once for an evaluation."""

    def __init__(
        self,
        shards: Sequence[Path],
        *,
        batch_tokens: int,
        seed: int = 0,
        held_out_share: float = 0.0,
        never_trained_share: float = 0.0,
        masking: Literal["dynamic", "static"] = "dynamic",
    ):
        """Read the shards' footers. Raises InputError if a file is missing or not a shard.

        Documents within `held_out_share` are evaluated on, those within the larger share never trained on.
        """
        self.info: ShardInfo = read_info(shards[0])
        self.batch_tokens, self.seed, self.held_out_share = batch_tokens, seed, held_out_share
        self.never_trained_share = max(held_out_share, never_trained_share)
        self.masking = masking
        self._drawn: tuple[int, Instances | None] = (0, None)  # the largest draw of held-out instances
        self.columns = _COLUMNS + (_STATIC_COLUMNS if masking == "static" else [])
        sizes = {path: row_group_tokens(path) for path in shards}
        self.row_groups = [(path, group) for path, tokens in sizes.items() for group in range(len(tokens))]
        self.tokens = sum(map(sum, sizes.values()))  # held-out documents included

    def _load(self, row_groups: Sequence[tuple[Path, int]]) -> Instances:
        tables = [read_shard(path, group, self.columns) for path, group in row_groups]
        return _to_instances(pa.concat_tables(tables))

    def plan(self, cursor: Cursor = START) -> Iterator[Planned]:
        """Yield the batches from a place on, without end and without held-out documents.

        Raises InputError if all documents are held out.
        """
        epoch, first, skip = cursor
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.row_groups))
            found = False
            for window in range(first, -(-len(order) // WINDOW_ROW_GROUPS)):
                members = order[window * WINDOW_ROW_GROUPS : (window + 1) * WINDOW_ROW_GROUPS]
                instances = self._load([self.row_groups[i] for i in members])
                rows = np.flatnonzero(~is_held_out(instances.sides, self.never_trained_share))
                rng = np.random.default_rng([self.seed, epoch, window])
                batches = token_batches(instances.lengths[rows], self.batch_tokens, rng)
                found |= bool(batches)
                for number, batch in enumerate(batches[skip:], skip + 1):
                    yield Planned(instances, rows[batch], Cursor(epoch, window, number))
                skip = 0
            if not found:
                raise InputError(
                    f"every document of {self.row_groups[0][0].parent} is held out: nothing is left to train "
                    "on. Give the corpus more documents"
                )
            epoch, first = epoch + 1, 0

    def pack(self, planned: Planned, rule: MaskRule) -> Batch:
        """Pack and mask a batch."""
        instances, rows, after = planned
        return pack_batch(instances, rows, self.info.vocabulary, rule, seed=self.seed, epoch=after.epoch)

    def held_out(self, max_tokens: int) -> Instances | None:
        """Draw up to `max_tokens` tokens of held-out documents by hash over all shards; None without any.

        They are the same ones for every run and seed, and the first ones of a larger draw.
        """
        if max_tokens > self._drawn[0]:
            table = self._draw(max_tokens)
            self._drawn = max_tokens, None if table is None else _to_instances(table)
        drawn = self._drawn[1]
        return drawn and drawn.take(np.arange(rows_within(drawn.lengths, max_tokens)))

    def _draw(self, max_tokens: int) -> pa.Table | None:
        """Read all shards, one row group at a time, keeping the held-out instances with the lowest hashes."""
        drawn, bound = None, np.uint64(2**64 - 1)
        for path, group in self.row_groups:
            keys = read_shard(path, group, ["side", "instance_id"])
            hashes = mix(keys["instance_id"].to_numpy() ^ _DRAWING)
            rows = np.flatnonzero(
                is_held_out(keys["side"].to_numpy(), self.held_out_share) & (hashes <= bound)
            )
            if not len(rows):
                continue
            # without stored masks, which depend on the seed of the corpus
            more = read_shard(path, group, _COLUMNS).take(rows)
            drawn = more if drawn is None else pa.concat_tables([drawn, more])
            hashes = mix(drawn["instance_id"].to_numpy() ^ _DRAWING)
            order = np.argsort(hashes, kind="stable")
            lengths = pc.list_value_length(drawn["input_ids"]).to_numpy()[order]
            count = rows_within(lengths, max_tokens)
            drawn = drawn.take(order[:count])
            if lengths[:count].sum() >= max_tokens:
                bound = hashes[order[count - 1]]
        return drawn

    def held_out_batches(self, max_tokens: int) -> Iterator[Batch]:
        """Yield what `held_out` draws, with the same masks for every run and seed."""
        if drawn := self.held_out(max_tokens):
            yield from self.pack_held_out(drawn, held_out_rows(drawn, self.batch_tokens))

    def probe_batches(self, rule: MaskRule, sequences: int) -> Iterator[Batch]:
        """Yield up to `sequences` held-out sequences, masked by `rule`."""
        if drawn := self.held_out(sequences * self.info.max_seq_length):
            few = drawn.take(np.arange(min(sequences, len(drawn))))
            yield from self.pack_held_out(few, held_out_rows(few, self.batch_tokens), rule)

    def pack_held_out(
        self, instances: Instances, batches: Sequence[np.ndarray], rule: MaskRule | None = None
    ) -> Iterator[Batch]:
        """Pack rows of held-out instances, with masks that depend on no run."""
        vocabulary, rule = self.info.vocabulary, rule or self.info.rule
        for rows in batches:
            yield pack_batch(instances, rows, vocabulary, rule, seed=0, epoch=STATIC_EPOCH)

    def training_text(self) -> Iterator[tuple[Instances, np.ndarray]]:
        """Yield the instances of each row group, and the rows that are trained on; groups in random order."""
        for number in np.random.default_rng(0).permutation(len(self.row_groups)):
            instances = self._load([self.row_groups[number]])
            yield instances, np.flatnonzero(~is_held_out(instances.sides, self.never_trained_share))
