"""Packed, masked batches from instances.

R = rows of a window, S = sequences of a batch, T = their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from albert.model import IGNORED, Batch
from data.instances import MaskRule, Masks, MaskVocabulary, draw_masks, mask_vocabulary, take_ranges
from data.tokenization import Tokenizer


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

    def take(self, rows: np.ndarray) -> Instances:
        """The instances of `rows`, in that order."""
        lengths, static = self.lengths[rows], self.static
        at = take_ranges(self.offsets[rows], lengths)
        if static is not None:
            counts = np.diff(static[0])[rows]
            of_masks = take_ranges(static[0][rows], counts)
            offsets = np.cumulative_sum(counts, include_initial=True)
            static = (offsets, *(values[of_masks] for values in static[1:]))
        return Instances(
            self.instance_ids[rows],
            self.doc_keys[rows],
            self.sides[rows],
            self.input_ids[at],
            np.cumulative_sum(lengths, include_initial=True),
            self.segment_b_start[rows],
            self.word_starts[at],
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


def pack_batch(
    instances: Instances,
    rows: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    seed: int,
    epoch: int,
) -> Batch:
    """A packed, masked batch of some rows, with the stored masks if there are any."""
    packed = instances.take(rows)
    masks = packed.masks(vocabulary, rule, seed=seed, epoch=epoch)
    input_ids = packed.input_ids.astype(np.int64)
    input_ids[masks.positions] = masks.replacements
    is_ordered = (packed.sop_labels != IGNORED).any()
    return replace(
        pack_segments(input_ids, packed.offsets, packed.segment_b_start),
        masked_index=torch.from_numpy(masks.positions),
        masked_labels=torch.from_numpy(masks.labels.astype(np.int64)),
        sop_labels=torch.from_numpy(packed.sop_labels) if is_ordered else None,
    )


def pack_segments(input_ids: np.ndarray, offsets: np.ndarray, segment_b_start: np.ndarray) -> Batch:
    """A packed batch of tokens [T] int64. Sequences lie between `offsets` [S+1]; segment B of each begins at
    `segment_b_start` [S], 0 where there is none.
    """
    lengths, b_start = np.diff(offsets), segment_b_start.astype(np.int64)
    b_lengths = np.where(b_start > 0, lengths - b_start, 0)
    segments = np.stack([lengths - b_lengths, b_lengths], axis=1).ravel()  # A and B of each in turn
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(np.repeat(np.arange(len(segments)) & 1, segments)),
        position_ids=torch.from_numpy(np.arange(len(input_ids)) - np.repeat(offsets[:-1], lengths)),
        cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
        max_seqlen=int(lengths.max()),
    )


def mask_batch(
    batch: Batch,
    tokenizer: Tokenizer,
    rule: MaskRule | None = None,
    *,
    seed: int,
    word_starts: np.ndarray | None = None,
) -> Batch:
    """A batch with masks drawn for it; by default every token is a word of its own, else special tokens and
    those of `word_starts` [T] begin one.
    """
    vocabulary, input_ids = mask_vocabulary(tokenizer), batch.input_ids.numpy()
    starts = np.isin(input_ids, vocabulary.special_ids) | (True if word_starts is None else word_starts)
    keys = np.arange(batch.sequences, dtype=np.uint64)
    packed = input_ids, starts, batch.cu_seqlens.numpy(), keys
    drawn = draw_masks(*packed, vocabulary, rule or MaskRule(), seed=seed, epoch=0)
    index, labels, put = map(torch.from_numpy, drawn[:3])
    masked = batch.input_ids.scatter(0, index, put)
    return replace(batch, input_ids=masked, masked_index=index, masked_labels=labels)
