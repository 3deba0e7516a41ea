"""Shards: immutable Parquet files of instances and of their documents, named by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import InputError
from data.files import replacing, sha256
from data.instances.cutting import NO_ORDER, Instances
from data.instances.masking import MaskRule, MaskVocabulary, SimilarWords, draw_masks
from data.workspace import Workspace

if TYPE_CHECKING:
    from data.tokenization import Tokenizer

SHARD_CHARACTERS = 2_000_000  # of text in a shard
ROW_GROUP = 4096  # instances that a reader loads at once
STATIC_EPOCH = 0xFFFF_FFFF  # the stored masks are an epoch that training never reaches
_LISTS = ("input_ids", "masked_positions", "masked_input_ids", "masked_labels")  # columns
_INFO_KEY = b"jixu"
LENGTH_BIN = 16  # tokens to a bar of the length histogram
MEND = "run jixu doctor --fix, then refresh the corpus"


@dataclass(frozen=True, slots=True)
class Shard:
    """A committed pair of files in the catalog. Paths are relative to the workspace."""

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


def sum_counts(shards: Sequence[Shard]) -> dict[str, int]:
    """Add up what shards count, by the names of their fields."""
    names = ("documents", "characters", "words", "sentences", "instances", "tokens")
    return {name: sum(getattr(shard, name) for shard in shards) for name in names}


def list_column(values: pa.Array, offsets: np.ndarray, *, nullable: bool = True) -> pa.ListArray:
    """Make Arrow lists of the values between one offset and the next; without nulls they are read faster."""
    kind = pa.list_(values.type if nullable else pa.field("element", values.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=kind)


def list_values(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a column of lists, and where each list begins among them, [R+1]."""
    lists = column.combine_chunks()
    offsets = lists.offsets.to_numpy()
    return lists.flatten().to_numpy(zero_copy_only=False), offsets - offsets[0]


def _flags(flags: np.ndarray, offsets: np.ndarray) -> pa.StringArray:
    """Make a text of 0 and 1 for each row, which is read four times as fast as a list."""
    text = pa.py_buffer((flags.astype(np.uint8) + ord("0")).tobytes())
    return pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32).tobytes()), text
    )


def instance_table(
    instances: Instances,
    doc_ids: Sequence[str],
    sides: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    max_seq_length: int,
    seed: int,
    similar_file: str | None = None,
) -> pa.Table:
    """Make a table of instances with their static masks; `doc_ids` and `sides` are those of all documents."""
    cu_seqlens = instances.cu_seqlens
    token = pa.uint16() if vocabulary.vocab_size <= 1 << 16 else pa.uint32()
    input_ids = instances.input_ids.astype(str(token))  # of Arrow and of NumPy alike
    masks = draw_masks(
        input_ids,
        instances.word_starts,
        cu_seqlens,
        instances.instance_ids,
        vocabulary,
        rule,
        seed=seed,
        epoch=STATIC_EPOCH,
    )
    masked = np.searchsorted(masks.positions, cu_seqlens)  # [R+1], where each instance's masks begin
    positions = masks.positions - np.repeat(cu_seqlens[:-1], np.diff(masked))
    no_order = instances.sop_labels == NO_ORDER
    columns = {
        "instance_id": pa.array(instances.instance_ids),
        "doc_id": pa.array(doc_ids, pa.string()).take(pa.array(instances.documents)),
        "side": pa.array(sides[instances.documents]),
        "input_ids": list_column(pa.array(input_ids), cu_seqlens, nullable=False),
        "segment_b_start": pa.array(instances.segment_b_start.astype(np.uint16)),
        "word_starts": _flags(instances.word_starts, cu_seqlens),
        "sop_label": pa.array(instances.sop_labels.astype(np.uint8), mask=no_order),
        "masked_positions": list_column(pa.array(positions.astype(np.uint16)), masked, nullable=False),
        "masked_input_ids": list_column(pa.array(masks.replacements), masked, nullable=False),
        "masked_labels": list_column(pa.array(masks.labels), masked, nullable=False),
    }
    fields = [pa.field(name, column.type, name == "sop_label") for name, column in columns.items()]
    info = {_INFO_KEY: json.dumps(_info(vocabulary, rule, max_seq_length, similar_file))}
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, metadata=info))


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The metadata of a shard, so that a trainer needs no tokenizer and no catalog."""

    vocab_size: int
    max_seq_length: int
    rule: MaskRule
    vocabulary: MaskVocabulary


def _info(
    vocabulary: MaskVocabulary, rule: MaskRule, max_seq_length: int, similar_file: str | None
) -> dict[str, object]:
    ids = vocabulary.replacement_ids
    breaks = np.flatnonzero(np.diff(ids) != 1)
    runs = zip(ids[np.r_[0, breaks + 1]].tolist(), ids[np.r_[breaks, -1]].tolist(), strict=True)
    return {
        "vocab_size": vocabulary.vocab_size,
        "max_seq_length": max_seq_length,
        "objective": rule.objective,
        "mask_rate": rule.rate,
        "max_ngram": rule.max_ngram,
        "max_predictions": rule.max_predictions,
        "mask_id": vocabulary.mask_id,
        "special_ids": vocabulary.special_ids.tolist(),
        "replacement_runs": list(runs),  # first and last id of each run of consecutive ids
        "similar_words": similar_file,  # a file beside the shard
    }


def read_info(path: Path) -> ShardInfo:
    """Read a shard's metadata. Raises InputError if the file is not a shard."""
    try:
        schema = pq.read_schema(path)
        schema.field("side")
        info = json.loads(schema.metadata[_INFO_KEY])
        rule = MaskRule(
            rate=info["mask_rate"],
            objective=info["objective"],
            max_ngram=info["max_ngram"],
            max_predictions=info["max_predictions"],
        )
    except (OSError, pa.ArrowException, KeyError, TypeError):
        raise InputError(f"{path} is not an instance shard of this version: refresh the corpus") from None
    replacements = np.concatenate([np.arange(first, last + 1) for first, last in info["replacement_runs"]])
    similar = read_similar_words(path.parent / info["similar_words"]) if info["similar_words"] else None
    vocabulary = MaskVocabulary(
        info["vocab_size"], info["mask_id"], np.array(info["special_ids"]), replacements, similar
    )
    return ShardInfo(info["vocab_size"], info["max_seq_length"], rule, vocabulary)


def read_shard(path: Path, row_group: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file of a version, or one of its row groups. Raises InputError if a page's checksum is wrong."""
    with _whole(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        # in one thread: at this size Arrow's own threads cost as much as they save
        if row_group is None:
            return file.read(columns, use_threads=False)
        return file.read_row_group(row_group, columns, use_threads=False)


def is_readable(path: Path) -> bool:
    """Whether a file can be read, and the checksums of its pages are right if it has some."""
    try:
        read_shard(path)
    except InputError:
        return False
    return True


def is_held_out(sides: np.ndarray, share: float) -> np.ndarray:
    """Whether documents are within a share, by their sides (`data.cleaning.sides_of`)."""
    return sides < share * 2.0**32


def read_rows(parts: Iterable[tuple[Path, int]], held_out_share: float) -> Iterator[dict[str, Any]]:
    """Yield the instances of row groups as a person may use them, without documents within a share.

    Word starts are booleans, `instance_id` is 16 hex digits, and `sop_label` -1 where there is none.
    """
    for path, row_group in parts:
        table = read_shard(path, row_group)
        is_trained_on = ~is_held_out(table["side"].to_numpy(), held_out_share)
        for row in table.filter(pa.array(is_trained_on)).drop_columns(["side"]).to_pylist():
            row["instance_id"] = f"{row['instance_id']:016x}"  # no int64, as others make of integers
            row["sop_label"] = NO_ORDER if row["sop_label"] is None else row["sop_label"]
            row["word_starts"] = [mark == "1" for mark in row["word_starts"]]
            yield row


def count_row_groups(path: Path) -> int:
    """Return how many parts of a shard `read_shard` can read. Raises InputError if its footer is damaged."""
    with _whole(path):
        return pq.read_metadata(path).num_row_groups


def row_group_tokens(path: Path) -> list[int]:
    """Return the tokens of each part of a shard, from its footer. Raises InputError if it is damaged."""
    with _whole(path):
        footer = pq.read_metadata(path)
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    tokens = next(at for at, path in enumerate(paths) if path.startswith("input_ids."))
    return [footer.row_group(group).column(tokens).num_values for group in range(footer.num_row_groups)]


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is gone or damaged ({' '.join(str(error).split())}): {MEND}") from None


def write_similar_words(similar: SimilarWords, folder: Path) -> Path:
    """Write a table of similar words beside the shards that need it."""
    ids = list_column(pa.array(similar.input_ids.astype(np.uint32)), similar.offsets)
    table = pa.table({"key": pa.array(similar.keys), "input_ids": ids})
    return write_table(table, folder, "similar-")


def read_similar_words(path: Path) -> SimilarWords:
    """Read a table of similar words. Raises InputError if the file is gone or damaged."""
    table = read_shard(path)
    ids, offsets = list_values(table["input_ids"])
    return SimilarWords(table["key"].to_numpy(), offsets, ids)


def mask_vocabulary(tokenizer: Tokenizer, similar: SimilarWords | None = None) -> MaskVocabulary:
    """Collect the parts of a tokenizer that masking needs."""
    # including [UNK]: nothing is learnt from predicting it
    special = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    return MaskVocabulary(
        tokenizer.vocab_size, tokenizer.mask_id, np.array(special), tokenizer.replacement_ids(), similar
    )


def write_shard(
    instances: pa.Table, documents: pa.Table, workspace: Workspace, corpus: str
) -> tuple[str, str, str, str]:
    """Write both files of a shard; return the path and sha256 of each, the first fields of `Shard`.

    The name of the first begins with the other's: the same instances can come of documents at other places.
    """
    documents_path = write_table(documents, workspace.documents(corpus))
    path = write_table(instances, workspace.shards(corpus), f"{documents_path.stem}-")
    return workspace.relative(path), sha256(path), workspace.relative(documents_path), sha256(documents_path)


def write_table(table: pa.Table, folder: Path, prefix: str = "") -> Path:
    """Write a table durably as `folder/<prefix><16 digits>.parquet`, of its schema's and its rows' sha256."""
    digest = hashlib.sha256(table.schema.to_string().encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    digest.update(sink.getvalue())
    path = folder / f"{prefix}{digest.hexdigest()[:16]}.parquet"
    # these numbers vary too much for a dictionary; with a stream for each byte, mostly 0 in the upper ones,
    # the file is as small, written in two thirds of the time and read in three quarters
    streams = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _LISTS if name in table.column_names}
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=ROW_GROUP,
            use_dictionary=["doc_id", "side"] if streams else True,
            column_encoding=streams or None,
            write_page_checksum=True,
        )
    return path


def length_histogram(lengths: Iterable[int]) -> tuple[int, ...]:
    """Count lengths in bars of LENGTH_BIN: 1..16, 17..32 and so on.

    >>> length_histogram([1, 16, 17])
    (2, 1)
    """
    bars = (np.fromiter(lengths, dtype=np.int64) - 1) // LENGTH_BIN
    return tuple(np.bincount(bars).tolist()) if len(bars) else ()


def verify(path: Path, expected: str) -> bool:
    """Whether a file exists with the content recorded in the catalog."""
    return path.is_file() and sha256(path) == expected
