"""Batches of one shape and in one buffer, as a copy to a GPU and a CUDA graph want them, and that copy.

T = packed tokens, S = sequences, n = masked positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import kernels
from albert.model import IGNORED, Batch

_ALIGNED = 4  # numbers of 4 bytes: every part of a buffer begins at a multiple of 16 bytes


class Shape(NamedTuple):
    """Sizes of a batch with masks."""

    tokens: int
    sequences: int
    masked: int
    longest: int
    is_ordered: bool  # whether it has order labels

    @classmethod
    def of(cls, batch: Batch) -> Shape:
        masked, is_ordered = len(batch.masked()[0]), batch.sop_labels is not None
        return cls(batch.tokens, batch.sequences, masked, batch.max_seqlen, is_ordered)

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of the parts of a buffer."""
        T, S, n = self.tokens, self.sequences, self.masked
        return (T, T, T, S + 1, n, n, S if self.is_ordered else 0)


def pad(batch: Batch, shape: Shape) -> Batch | None:
    """The batch in another shape, with the same losses and gradients; None if it does not fit.

    Filler sequences take up the remaining tokens, and empty ones in front of the others the remaining
    sequences: the first token of a sequence is an index, which past the last token would point outside.
    Nothing in them counts. What is added is spread over rows: on a GPU the gradients of one row are added one
    after another.
    """
    index, labels = batch.masked()
    rest, masked = shape.tokens - batch.tokens, shape.masked - len(index)
    fillers = [shape.longest] * (rest // shape.longest) + [rest % shape.longest] * (rest % shape.longest > 0)
    empty = shape.sequences - batch.sequences - len(fillers)
    is_ordered = batch.sop_labels is not None
    if min(rest, masked, empty) < 0 or batch.max_seqlen > shape.longest or is_ordered != shape.is_ordered:
        return None
    positions = [torch.arange(length) for length in fillers]
    ends = batch.tokens + torch.tensor(fillers, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ends = torch.cat([batch.cu_seqlens, ends])
    # at the first token of each sequence begin itself and some empty ones before it
    copies = 1 + (torch.arange(len(ends) - 1) + empty) // (len(ends) - 1)
    sop_labels = None
    if batch.sop_labels is not None:
        sop_labels = batch.sop_labels.new_full((shape.sequences,), IGNORED)
        sop_labels[copies.cumsum(0)[: batch.sequences] - 1] = batch.sop_labels
    return Batch(
        kernels.fill(batch.input_ids, rest),
        kernels.fill(batch.token_type_ids, rest),
        torch.cat([batch.position_ids, *positions]),
        torch.cat([ends[:-1].repeat_interleave(copies), ends[-1:]]),
        shape.longest,
        torch.cat([index, shape.tokens - 1 - torch.arange(masked) % shape.tokens]),
        kernels.fill(labels, masked, IGNORED),
        sop_labels,
    )


def flatten(batch: Batch, weights: Sequence[float] | Tensor) -> Tensor:
    """All numbers of a batch in one int32 buffer, for one copy; at its end its two weights, as fp32."""
    index, labels = batch.masked()
    sop = batch.cu_seqlens[:0] if batch.sop_labels is None else batch.sop_labels
    ids = (batch.input_ids, batch.token_type_ids, batch.position_ids)
    parts = [x.int() for x in (*ids, batch.cu_seqlens, index, labels, sop)]
    parts.append(torch.as_tensor(weights, dtype=torch.float32).view(torch.int32))
    return torch.cat([kernels.fill(x, -len(x) % _ALIGNED) for x in parts])


def weights_of(buffer: Tensor) -> Tensor:
    """The weights [2] in a buffer that `flatten` made, on its device."""
    return buffer[-_ALIGNED:].view(torch.float32)[:2]


def unflatten(buffer: Tensor, shape: Shape) -> Batch:
    """The batch in a buffer that `flatten` made, on its device."""
    sizes = [size + -size % _ALIGNED for size in shape.parts]
    numbers = buffer[: sum(sizes)]
    *_, cu_seqlens, _, _, _ = numbers.split(sizes)
    parts = numbers.long().split(sizes)
    ids, types, places, _, index, labels, sop = (
        part[:size] for part, size in zip(parts, shape.parts, strict=True)
    )
    ends = cu_seqlens[: shape.sequences + 1]
    orders = sop if shape.is_ordered else None
    return Batch(ids, types, places, ends, shape.longest, index, labels, orders)


class Sender:
    """Copies buffers to a GPU on a stream of their own, ahead of the work that reads them; to a CPU it copies
    nothing.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, buffer: Tensor) -> Tensor:
        """The buffer on the device, where `receive` must be called before it is read; any thread may send."""
        if self._stream is None:
            return buffer
        with torch.cuda.stream(self._stream):
            return buffer.pin_memory().to(self._device, non_blocking=True)

    def receive(self, buffers: Sequence[Tensor]) -> None:
        """Let the device's work from here on wait for the buffers that were sent; the host does not."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for buffer in buffers:
            buffer.record_stream(current)  # its memory is of the other stream
