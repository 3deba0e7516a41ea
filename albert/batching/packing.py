"""Packed, masked batches from instances: whole rows are copied, many batches at once.

R = rows of a window, S = sequences of a batch, T = their tokens, n = masked tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from albert.model import IGNORED, Batch
from data.instances import MaskRule, Masks, MaskVocabulary, draw_masks, mask_vocabulary, take_ranges
from data.tokenization import Tokenizer

_PACKED_TOKENS = 1 << 17  # at once: more would leave the cache, fewer cost more in calls


@dataclass(frozen=True)
class Instances:
    """Rows of a shard as arrays. R = rows, T = their tokens."""

    instance_ids: np.ndarray  # [R] uint64
    doc_keys: np.ndarray  # [R] uint64, the doc_id as a number
    sides: np.ndarray  # [R] uint32, of the document: see `is_held_out`
    input_ids: np.ndarray  # [T]
    offsets: np.ndarray  # [R+1]
    segment_b_start: np.ndarray  # [R]
    word_starts: np.ndarray  # [T] bool
    sop_labels: np.ndarray  # [R] int64, IGNORED where the corpus gives no order
    # stored masks: offsets [R+1], positions, ids, labels
    static: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None

    def __len__(self) -> int:
        return len(self.instance_ids)

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @cached_property
    def _marked(self) -> np.ndarray:
        """Twice the id of each token, and 1 more where a word starts, [T] uint16 or uint32."""
        fits = self.input_ids.max(initial=0) < 1 << 15
        marked: np.ndarray = self.input_ids.astype(np.uint16 if fits else np.uint32)
        np.left_shift(marked, 1, out=marked)
        return np.bitwise_or(marked, self.word_starts, out=marked)

    @cached_property
    def _rows(self) -> pa.BinaryArray:
        """The marked tokens of each row, [R]; one copy a row, as rows lie far apart in memory."""
        starts = pa.py_buffer((self.offsets * self._marked.itemsize).astype(np.int32))
        tokens = pa.py_buffer(self._marked)
        return pa.BinaryArray.from_buffers(pa.binary(), len(self), [None, starts, tokens])

    def take(self, rows: np.ndarray) -> Instances:
        """The instances of `rows`, in that order."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        static = self.static
        if static is not None:
            counts = np.diff(static[0])[rows]
            at = take_ranges(static[0][rows], counts)
            static = (np.concatenate([[0], np.cumsum(counts)]), *(values[at] for values in static[1:]))
        # copies whole rows, where an index would copy token by token
        marked = np.frombuffer(self._rows.take(pa.array(rows)).buffers()[2], self._marked.dtype, offsets[-1])
        return Instances(
            self.instance_ids[rows],
            self.doc_keys[rows],
            self.sides[rows],
            (marked >> 1).astype(self.input_ids.dtype, copy=False),
            offsets,
            self.segment_b_start[rows],
            (marked & 1).astype(bool),
            self.sop_labels[rows],
            static,
        )

    def masks(self, vocabulary: MaskVocabulary, rule: MaskRule, *, seed: int, epoch: int) -> Masks:
        """The stored masks of all rows if there are any, else new ones."""
        if self.static is None:
            packed = self.input_ids, self.word_starts, self.offsets, self.instance_ids
            return draw_masks(*packed, vocabulary, rule, seed=seed, epoch=epoch)
        offsets, positions, ids, labels = self.static
        return Masks(positions + np.repeat(self.offsets[:-1], np.diff(offsets)), labels, ids)


def pack_batches(
    instances: Instances,
    batches: Sequence[np.ndarray],
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    seed: int,
    epoch: int,
) -> Iterator[Batch]:
    """Yield packed, masked batches of some rows each, with the stored masks if there are any."""
    if not batches:
        return
    firsts = np.cumsum([0, *map(len, batches[:-1])])
    sizes = np.add.reduceat(instances.lengths[np.concatenate(batches)], firsts)
    first = tokens = 0
    for end, size in enumerate(sizes.tolist(), 1):
        tokens += size
        if tokens >= _PACKED_TOKENS or end == len(batches):
            packed = instances.take(np.concatenate(batches[first:end]))
            masks = packed.masks(vocabulary, rule, seed=seed, epoch=epoch)
            yield from _split(packed, masks, np.array([len(batch) for batch in batches[first:end]]))
            first, tokens = end, 0


def _split(packed: Instances, masks: Masks, sizes: np.ndarray) -> Iterator[Batch]:
    """Yield batches of `sizes` rows: views of tensors that hold all of them."""
    lengths, cu_seqlens = packed.lengths, packed.offsets
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    begins, tokens = cu_seqlens[firsts], cu_seqlens[ends] - cu_seqlens[firsts]
    masked = np.diff(np.searchsorted(masks.positions, cu_seqlens[np.append(0, ends)]))
    input_ids = packed.input_ids.astype(np.int64)
    input_ids[masks.positions] = masks.replacements
    positions = np.arange(len(input_ids))
    positions -= np.repeat(cu_seqlens[:-1], lengths)
    bounds = np.cumsum(np.insert(lengths, firsts, 0)) - np.repeat(begins, sizes + 1)

    def each(values: np.ndarray, counts: np.ndarray) -> tuple[torch.Tensor, ...]:
        return torch.from_numpy(values).split(counts.tolist())

    fields = zip(
        each(input_ids, tokens),
        each(_token_types(packed), tokens),
        each(positions, tokens),
        each(bounds.astype(np.int32), sizes + 1),
        np.maximum.reduceat(lengths, firsts).tolist(),
        each(masks.positions - np.repeat(begins, masked), masked),
        each(masks.labels.astype(np.int64), masked),
        each(packed.sop_labels, sizes),
        (np.maximum.reduceat(packed.sop_labels, firsts) != IGNORED).tolist(),
        strict=True,
    )
    batch: Any = Batch
    for *values, orders, is_ordered in fields:
        yield batch(*values, orders if is_ordered else None)


def _token_types(packed: Instances) -> np.ndarray:
    """0 in segment A and 1 in B, [T] int64."""
    b_start = packed.segment_b_start.astype(np.int64)
    b_lengths = np.where(b_start > 0, packed.lengths - b_start, 0)
    segments = np.stack([packed.lengths - b_lengths, b_lengths], axis=1).ravel()  # A and B of each in turn
    return np.repeat(np.arange(len(segments)) & 1, segments)


def mask_batch(
    batch: Batch,
    tokenizer: Tokenizer,
    rule: MaskRule | None = None,
    *,
    seed: int,
    word_starts: np.ndarray | None = None,
) -> Batch:
    """A batch with masks drawn for it; by default every token is a word of its own, else those of
    `word_starts` [T] begin one.
    """
    starts = np.ones(batch.tokens, dtype=bool) if word_starts is None else word_starts
    keys = np.arange(batch.sequences, dtype=np.uint64)
    packed = batch.input_ids.numpy(), starts, batch.cu_seqlens.numpy(), keys
    drawn = draw_masks(*packed, mask_vocabulary(tokenizer), rule or MaskRule(), seed=seed, epoch=0)
    index, labels, put = map(torch.from_numpy, drawn[:3])
    input_ids = batch.input_ids.scatter(0, index, put)
    return replace(batch, input_ids=input_ids, masked_index=index, masked_labels=labels)
