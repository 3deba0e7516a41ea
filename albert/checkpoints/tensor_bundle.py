"""Variables of a TensorFlow checkpoint (tensor bundle, "V2"), read without TensorFlow.

`<prefix>.index` is a sorted table in LevelDB's format (blocks of prefix-compressed keys, and a footer that
locates the index block) from a variable's name to a BundleEntryProto; `<prefix>.data-*` hold the raw values.
Formats: tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/table_format.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from albert.checkpoints.source import tensorflow_shards
from data.errors import InputError

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_BLOCK_TRAILER_BYTES = 5  # compression, checksum
# tensorflow/core/framework/types.proto: 1 float, 2 double, 3 int32, 9 int64, 14 bfloat16, 19 half
_DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64, 14: np.uint16, 19: np.float16}
_BFLOAT16 = 14
_COUNTERS = {"global_step", "beta1_power", "beta2_power"}


class _Entry(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def read_bundle(index: Path) -> dict[str, Tensor]:
    """Read the model's variables by name; kernels, stored [in, out], are transposed to [out, in].

    An optimiser's variables are skipped: counters, and names that extend another variable's. Raises
    InputError for a damaged or incomplete checkpoint.
    """
    try:
        entries = dict(_read_entries(index.read_bytes()))
    except (ValueError, IndexError):
        raise InputError(f"{index} is not the index of a TensorFlow checkpoint, or is damaged") from None
    shards = tensorflow_shards(index)
    names = [name for name in entries if name.rpartition("/")[0] not in entries and name not in _COUNTERS]
    return {name: _read_variable(index, shards, name, entries[name]) for name in names}


def _read_variable(index: Path, shards: list[Path], name: str, entry: _Entry) -> Tensor:
    if entry.dtype not in _DTYPES:
        raise InputError(f"{name} in {index} is of TensorFlow's type {entry.dtype}: only numbers can be read")
    path = next((p for p in shards if p.name.rpartition("data-")[2].startswith(f"{entry.shard:05}-")), None)
    if path is None:
        raise InputError(f"{name} in {index} is in data file {entry.shard}, which is not there")
    dtype = np.dtype(_DTYPES[entry.dtype])
    count = int(np.prod(entry.shape, dtype=object))
    if count * dtype.itemsize != entry.size or entry.offset + entry.size > path.stat().st_size:
        raise InputError(f"{path} is too short for {name} of shape {entry.shape}: it is damaged")
    values = np.fromfile(path, dtype, count, offset=entry.offset).reshape(entry.shape)
    tensor = torch.from_numpy(values.astype(np.int32) if entry.dtype == _BFLOAT16 else values)
    if entry.dtype == _BFLOAT16:
        tensor = (tensor << 16).view(torch.float32)
    is_matrix = name.endswith(("/kernel", "/word_embeddings_2"))
    return tensor.T.contiguous() if is_matrix and tensor.dim() == 2 else tensor


def _read_entries(content: bytes) -> Iterator[tuple[str, _Entry]]:
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError
    at = 0
    handles = []
    for _ in range(4):  # offset and size of the meta-index block, then of the index block
        value, at = _varint(footer, at)
        handles.append(value)
    for _, handle in _block(content, *handles[2:]):
        offset, at = _varint(handle, 0)
        size, _ = _varint(handle, at)
        for key, entry in _block(content, offset, size):
            if key:  # the empty key is the header's
                yield key.decode("utf-8"), _entry(entry)


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield a block's keys and values; each key shares a prefix with the one before."""
    block, trailer = content[offset : offset + size], content[offset + size :][:_BLOCK_TRAILER_BYTES]
    if len(block) < size or len(trailer) < _BLOCK_TRAILER_BYTES or trailer[0]:  # TensorFlow compresses none
        raise ValueError
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + fresh + length > end:
            raise ValueError
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protocol-buffer message."""
    at = 0
    value: int | bytes
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif wire == 5:
            value, at = message[at : at + 4], at + 4
        else:
            raise ValueError
        yield number, value


def _parts(value: int | bytes) -> Iterator[tuple[int, bytes]]:
    """The messages within a message."""
    if isinstance(value, int):
        raise ValueError
    yield from ((number, part) for number, part in _fields(value) if isinstance(part, bytes))


def _entry(message: bytes) -> _Entry:
    """BundleEntryProto: 1 dtype, 2 shape, 3 shard, 4 offset, 5 size, 7 slices (of partitioned variables)."""
    values: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    for number, value in _fields(message):
        if number == 2:  # TensorShapeProto: 2 dim, each: 1 size
            dims = [dict(_fields(dim)) for field, dim in _parts(value) if field == 2]
            shape = tuple(size for dim in dims if isinstance(size := dim.get(1, 0), int))
        elif number == 7:
            raise ValueError
        elif isinstance(value, int):
            values[number] = value
    return _Entry(values.get(1, 0), shape, values.get(3, 0), values.get(4, 0), values.get(5, 0))
