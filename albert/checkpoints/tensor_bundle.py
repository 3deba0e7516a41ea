"""Variables of a TensorFlow checkpoint (tensor bundle, "V2"), read without TensorFlow.

`<prefix>.index` is a sorted table in LevelDB's format (blocks of prefix-compressed keys, and a footer that
locates the index block) from a variable's name to a BundleEntryProto; `<prefix>.data-*` hold the raw values.
Formats: tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/table_format.txt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessages
from torch import Tensor

from albert.checkpoints.source import tensorflow_shards
from data.errors import InputError

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
# tensorflow/core/protobuf/tensor_bundle.proto and framework/tensor_shape.proto, the fields that are read here
_PROTO = """
name: "bundle" syntax: "proto3"
message_type { name: "Dim" field { name: "size" number: 1 type: TYPE_UINT64 } }
message_type {
  name: "Shape" field { name: "dim" number: 2 type: TYPE_MESSAGE type_name: "Dim" label: LABEL_REPEATED } }
message_type {
  name: "Entry"
  field { name: "dtype" number: 1 type: TYPE_UINT32 }
  field { name: "shape" number: 2 type: TYPE_MESSAGE type_name: "Shape" }
  field { name: "shard" number: 3 type: TYPE_UINT32 }
  field { name: "offset" number: 4 type: TYPE_UINT64 }
  field { name: "size" number: 5 type: TYPE_UINT64 } }
"""
_DTYPES = {1: "<f4", 2: "<f8", 19: "<f2"}  # of tensorflow/core/framework/types.proto
_Entry: Any = GetMessages([text_format.Parse(_PROTO, FileDescriptorProto())])["Entry"]


def read_bundle(index: Path) -> dict[str, Tensor]:
    """Read the model's variables by name; kernels, stored [in, out], are transposed to [out, in].

    An optimiser's variables are skipped: counters, which have no scope, and names that extend another
    variable's. Raises InputError for a damaged or incomplete checkpoint.
    """
    try:
        entries = dict(_read_entries(index.read_bytes()))
    except (ValueError, IndexError, DecodeError):
        raise InputError(f"{index} is not the index of a TensorFlow checkpoint, or is damaged") from None
    shards = tensorflow_shards(index)
    names = [name for name in entries if "/" in name and name.rpartition("/")[0] not in entries]
    return {name: _read_variable(index, shards, name, entries[name]) for name in names}


def _read_variable(index: Path, shards: list[Path], name: str, entry: Any) -> Tensor:
    path = next((p for p in shards if p.name.rpartition("data-")[2].startswith(f"{entry.shard:05}-")), None)
    if path is None:
        raise InputError(f"{name} in {index} is in data file {entry.shard}, which is not there")
    shape = tuple(dim.size for dim in entry.shape.dim)
    if entry.dtype not in _DTYPES:
        raise InputError(f"{name} in {index} is of TensorFlow's type {entry.dtype}, which is not read")
    dtype, count = np.dtype(_DTYPES[entry.dtype]), math.prod(shape)
    if dtype.itemsize * count != entry.size or entry.offset + entry.size > path.stat().st_size:
        raise InputError(f"{path} is too short for {name} of shape {shape}: it is damaged")
    values = np.fromfile(path, dtype, count, offset=entry.offset).astype(np.float32, copy=False)
    tensor = torch.from_numpy(values.reshape(shape))
    is_matrix = name.endswith(("/kernel", "/word_embeddings_2"))
    return tensor.T.contiguous() if is_matrix and tensor.dim() == 2 else tensor


def _read_entries(content: bytes) -> Iterator[tuple[str, Any]]:
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError
    (_, _, *index), _ = _varints(footer, 0, 4)  # offset and size of the meta-index block, then of the index
    for _, handle in _block(content, *index):
        place, _ = _varints(handle, 0, 2)
        for key, entry in _block(content, *place):
            if key:  # the empty key is the header's
                yield key.decode("utf-8"), _Entry.FromString(entry)


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield a block's keys and values; each key shares a prefix with the one before."""
    block = content[offset : offset + size]  # TensorFlow compresses none
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    key, at = b"", 0
    while at < end:
        (shared, fresh, length), at = _varints(block, at, 3)
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def _varints(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Read numbers of 7 bits a byte, the lowest first; bit 8 says that more follow. Also where they end."""
    values = []
    for _ in range(count):
        value = shift = 0
        while data[at] >= 0x80:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        values.append(value | data[at] << shift)
        at += 1
    return values, at
