"""Shards: immutable Parquet files of instances, named by their content, and of the documents they came
from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.files import replacing, sha256
from data.instances import NO_ORDER, Instance
from data.masking import MaskRule, MaskVocabulary, draw_masks
from data.records import InputError

if TYPE_CHECKING:
    from data.tokenization import Tokenizer

ROW_GROUP = 4096  # instances: what a reader loads at once
STATIC_EPOCH = 0xFFFF_FFFF  # the stored masks are an epoch that training never reaches
_INFO_KEY = b"jixu"
LENGTH_BIN = 16  # tokens to a bar of the length histogram


@dataclass(frozen=True, slots=True)
class Shard:
    """One committed pair of files, as the catalog keeps it. Paths are relative to the workspace."""

    path: str
    sha256: str
    documents_path: str
    documents_sha256: str
    instances: int
    tokens: int
    documents: int
    characters: int
    words: int
    sentences: int
    length_histogram: tuple[int, ...]  # instances by length, LENGTH_BIN tokens to a bar


def _list_column(values: np.ndarray, counts: Sequence[int], kind: pa.DataType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, type=kind))


def instance_table(
    instances: Sequence[Instance], tokenizer: Tokenizer, rule: MaskRule, *, max_seq_length: int, seed: int
) -> pa.Table:
    """Instances with their static masks as a table (columns: see the design's "An instance")."""
    lengths = [len(instance.input_ids) for instance in instances]
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    input_ids = np.concatenate([instance.input_ids for instance in instances])
    word_starts = np.concatenate([instance.word_starts for instance in instances])
    instance_ids = np.array([instance.instance_id for instance in instances], dtype=np.uint64)
    masks = draw_masks(
        input_ids,
        word_starts,
        cu_seqlens,
        instance_ids,
        mask_vocabulary(tokenizer),
        rule,
        seed=seed,
        epoch=STATIC_EPOCH,
    )
    sequence = np.searchsorted(cu_seqlens, masks.positions, side="right") - 1
    masked = np.bincount(sequence, minlength=len(instances))
    token = pa.uint16() if tokenizer.vocab_size <= 1 << 16 else pa.uint32()
    sop = [None if instance.sop_label == NO_ORDER else instance.sop_label for instance in instances]
    return pa.table(
        {
            "instance_id": pa.array(instance_ids),
            "doc_id": pa.array([instance.doc_id for instance in instances]),
            "input_ids": _list_column(input_ids, lengths, token),
            "segment_b_start": pa.array([instance.segment_b_start for instance in instances], pa.uint16()),
            "word_starts": _list_column(word_starts, lengths, pa.bool_()),
            "sop_label": pa.array(sop, pa.uint8()),
            "masked_positions": _list_column(masks.positions - cu_seqlens[sequence], masked, pa.uint16()),
            "masked_input_ids": _list_column(masks.replacements, masked, token),
            "masked_labels": _list_column(masks.labels, masked, token),
        }
    ).replace_schema_metadata({_INFO_KEY: json.dumps(_info(tokenizer, rule, max_seq_length))})


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a shard says of itself, so that a trainer needs no tokenizer and no catalog."""

    vocab_size: int
    max_seq_length: int
    rule: MaskRule
    vocabulary: MaskVocabulary


def _info(tokenizer: Tokenizer, rule: MaskRule, max_seq_length: int) -> dict[str, object]:
    vocabulary = mask_vocabulary(tokenizer)
    ids = vocabulary.replacement_ids
    breaks = np.flatnonzero(np.diff(ids) != 1)
    runs = zip(ids[np.r_[0, breaks + 1]].tolist(), ids[np.r_[breaks, -1]].tolist(), strict=True)
    return {
        "vocab_size": tokenizer.vocab_size,
        "max_seq_length": max_seq_length,
        "mask_rate": rule.rate,
        "max_ngram": rule.max_ngram,
        "mask_id": vocabulary.mask_id,
        "special_ids": vocabulary.special_ids.tolist(),
        "replacement_runs": list(runs),  # first and last id of each run of ids in a row
    }


def read_info(path: Path) -> ShardInfo:
    """What a shard file says of itself. Raises InputError if it is not a shard."""
    try:
        info = json.loads(pq.read_schema(path).metadata[_INFO_KEY])
    except (OSError, pa.ArrowException, KeyError, TypeError):
        raise InputError(f"{path} is not an instance shard: refresh the corpus again") from None
    replacements = np.concatenate([np.arange(first, last + 1) for first, last in info["replacement_runs"]])
    return ShardInfo(
        info["vocab_size"],
        info["max_seq_length"],
        MaskRule(rate=info["mask_rate"], max_ngram=info["max_ngram"]),
        MaskVocabulary(info["mask_id"], np.array(info["special_ids"]), replacements),
    )


def mask_vocabulary(tokenizer: Tokenizer) -> MaskVocabulary:
    """What masking has to know of this tokenizer."""
    # [UNK] too: nothing is learnt from predicting it
    special = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    return MaskVocabulary(tokenizer.mask_id, np.array(special), tokenizer.replacement_ids())


def write_table(table: pa.Table, folder: Path, content: str) -> Path:
    """Write a table durably as `folder/<hash>.parquet`; the name is made from `content`, a digest of what it
    holds.
    """
    path = folder / f"{content[:16]}.parquet"
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=ROW_GROUP)
    return path


def table_digest(table: pa.Table) -> str:
    """sha256 of a table's values, schema and order."""
    digest = hashlib.sha256(table.schema.to_string().encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    digest.update(sink.getvalue())
    return digest.hexdigest()


def length_histogram(lengths: Iterable[int]) -> tuple[int, ...]:
    """Counts of lengths in bars of LENGTH_BIN: 1..16, 17..32 and so on.

    >>> length_histogram([1, 16, 17])
    (2, 1)
    """
    bars = (np.fromiter(lengths, dtype=np.int64) - 1) // LENGTH_BIN
    return tuple(np.bincount(bars).tolist()) if len(bars) else ()


def verify(path: Path, expected: str) -> bool:
    """Whether a file is there with the content the catalog has for it."""
    return path.is_file() and sha256(path) == expected
