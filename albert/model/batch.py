"""A packed batch: all sequences one after another, without padding; only attention knows where they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import kernels
from data.errors import InputError

IGNORED = -100  # label that does not count, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True, slots=True)
class Batch:
    """T = packed tokens, S = sequences, n = masked positions. All on one device."""

    input_ids: Tensor  # [T] int64
    token_type_ids: Tensor  # [T] int64
    position_ids: Tensor  # [T] int64, from 0 in each sequence
    cu_seqlens: Tensor  # [S+1] int32, running sum of the lengths, from 0 to T
    max_seqlen: int
    masked_index: Tensor | None = None  # [n] int64, in 0..T-1
    masked_labels: Tensor | None = None  # [n] int64, in 0..V-1
    sop_labels: Tensor | None = None  # [S] int64: 0 in order, 1 swapped, IGNORED where unknown

    @property
    def sequences(self) -> int:
        return self.cu_seqlens.numel() - 1

    @property
    def tokens(self) -> int:
        return self.input_ids.numel()

    def masked(self) -> tuple[Tensor, Tensor]:
        """Positions [n] and labels [n] of masked tokens. Raises InputError without masks."""
        if self.masked_index is None or self.masked_labels is None:
            raise InputError("a batch without masks has no loss: draw some with albert.batching.mask_batch")
        return self.masked_index, self.masked_labels

    def filled(self, count: int) -> Batch:
        """The batch followed by `count` more tokens, in sequences no longer than its own and without labels.

        Their position is 0. Nothing in them counts.
        """
        if not count:
            return self
        T, longest = self.tokens, max(1, self.max_seqlen)
        ends = self.cu_seqlens.new_tensor([*range(T + longest, T + count, longest), T + count])
        return replace(
            self,
            input_ids=kernels.fill(self.input_ids, count),
            token_type_ids=kernels.fill(self.token_type_ids, count),
            position_ids=kernels.fill(self.position_ids, count),
            cu_seqlens=torch.cat([self.cu_seqlens, ends]),
            sop_labels=None,
        )

    def to(self, device: torch.device | str) -> Batch:
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


def pack(sequences: Iterable[Sequence[int]], token_types: Iterable[Sequence[int]] | None = None) -> Batch:
    """A batch of token id sequences, special tokens included, with nothing masked."""
    sequences = list(sequences)
    lengths = [len(sequence) for sequence in sequences]
    types = token_types or [[0] * length for length in lengths]
    return Batch(
        input_ids=torch.tensor([i for sequence in sequences for i in sequence]),
        token_type_ids=torch.tensor([t for sequence in types for t in sequence]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
    )
