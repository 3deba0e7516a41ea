"""Second half of a refresh: the documents of one piece in, an instance shard and its documents file out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.files import sha256
from data.instances import (
    Instances,
    MaskRule,
    Shard,
    build_instances,
    find_objective,
    instance_table,
    length_histogram,
    list_column,
    mask_vocabulary,
    read_similar_words,
    table_digest,
    tokenize_documents,
    write_table,
)
from data.refresh.assign import Piece
from data.segmentation import Segmenter
from data.tokenization import Tokenizer, load_tokenizer
from data.workspace import Workspace

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source_uri", pa.string()),
        ("text", pa.string()),  # sentences joined by line ends
        ("words", pa.list_(pa.list_(pa.string()))),  # of each sentence; joined they are the sentence
        ("word_count", pa.int64()),
    ]
)
_BATCH_CHARACTERS = 1 << 18  # worked on at once


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildingRules:
    """What makes instances of documents."""

    tokenizer_path: str
    objective: str = "albert"
    max_seq_length: int = 128
    sop: bool = True
    copies: int = 1
    seed: int = 0
    mask_rate: float = 0.15
    max_ngram: int = 3
    max_predictions: int | None = None
    dictionaries: tuple[str, ...] = ()  # of the user's words, for the segmenter
    similar_words: str | None = None  # path of the table "macbert" takes replacements from


class SegmentedDocuments(NamedTuple):
    """Documents with their words. D = documents, w = words."""

    doc_ids: list[str]
    source_uris: list[str]
    text: str  # sentences, a line end after each
    word_lengths: np.ndarray  # [w], characters; a line end is a word
    sentences: np.ndarray  # [D], lines of each document


@lru_cache(maxsize=2)
def _tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(Path(path))


@lru_cache(maxsize=2)
def segmenter(dictionaries: tuple[str, ...]) -> Segmenter:
    """The process's segmenter with these user dictionaries, loaded at first use."""
    return Segmenter([Path(path) for path in dictionaries])


def build_shard(piece: Piece, rules: BuildingRules, workspace: Workspace, corpus: str) -> Shard | None:
    """Segment, tokenise, cut and mask the documents of a piece; None if they gave no instance.

    A pure function of the piece's documents and the rules. The shard counts the documents that gave an
    instance.
    """
    tokenizer = _tokenizer(rules.tokenizer_path)
    objective = find_objective(rules.objective)
    parts: list[Instances] = []
    doc_ids: list[str] = []
    tables: list[pa.Table] = []
    usable = characters = words = sentences = 0
    words_of = segmenter(rules.dictionaries)
    for batch_rows in _batches(Path(piece.assigned_path)):
        batch = _segment(batch_rows, words_of)
        documents = tokenize_documents(
            batch.doc_ids,
            batch.text,
            batch.word_lengths,
            batch.sentences,
            tokenizer,
            rules.max_seq_length - 3,
        )
        for copy in range(rules.copies):
            made = build_instances(
                documents,
                tokenizer,
                objective,
                max_seq_length=rules.max_seq_length,
                sop=rules.sop,
                copy=copy,
                seed=rules.seed,
            )
            parts.append(replace(made, documents=made.documents + len(doc_ids)))
        doc_ids += batch.doc_ids
        tables.append(_documents_table(batch))
        gave = np.diff(documents.first_piece) > 0
        usable += int(gave.sum())
        characters += _characters(batch, gave)
        words += len(batch.word_lengths) - int(batch.sentences.sum())
        sentences += int(batch.sentences.sum())
    instances = _concatenate(parts)
    if not len(instances):
        return None
    similar = read_similar_words(Path(rules.similar_words)) if rules.similar_words else None
    shard_table = instance_table(
        instances,
        doc_ids,
        mask_vocabulary(tokenizer, similar),
        MaskRule(
            rate=rules.mask_rate,
            objective=rules.objective,
            max_ngram=rules.max_ngram,
            max_predictions=rules.max_predictions,
        ),
        max_seq_length=rules.max_seq_length,
        seed=rules.seed,
        similar_file=Path(rules.similar_words).name if rules.similar_words else None,
    )
    shard_path = write_table(shard_table, workspace.shards(corpus), table_digest(shard_table))
    documents_table = pa.concat_tables(tables).combine_chunks()
    documents_path = write_table(documents_table, workspace.documents(corpus), table_digest(documents_table))
    return Shard(
        path=workspace.relative(shard_path),
        sha256=sha256(shard_path),
        documents_path=workspace.relative(documents_path),
        documents_sha256=sha256(documents_path),
        instances=len(instances),
        tokens=int(instances.cu_seqlens[-1]),
        documents=usable,
        characters=characters,
        words=words,
        sentences=sentences,
        length_histogram=length_histogram(instances.lengths),
    )


def _batches(path: Path) -> Iterator[list[dict]]:
    """The documents of an assigned file, some at a time."""
    rows: list[dict] = []
    size = 0
    for table in _assigned(path):
        for row in table.to_pylist():
            rows.append(row)
            size += sum(map(len, row["sentences"] if "sentences" in row else chain(*row["words"])))
            if size >= _BATCH_CHARACTERS:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def read_pieces(paths: Sequence[Path]) -> Iterator[str]:
    """The text of the documents in assigned files, some at a time; a line end after each sentence."""
    for path in paths:
        for rows in _batches(path):
            yield _text(rows)


def _text(rows: Sequence[dict]) -> str:
    if "words" in rows[0]:
        return "".join([word for row in rows for sentence in row["words"] for word in (*sentence, "\n")])
    return "\n".join([sentence for row in rows for sentence in row["sentences"]]) + "\n"


def _assigned(path: Path) -> Iterator[pa.Table]:
    """Rows of an assigned file, some at a time: its own, or the staged ones it names."""
    file = pq.ParquetFile(path)
    if "words" in file.schema_arrow.names:
        for batch in file.iter_batches(batch_size=256):
            yield pa.Table.from_batches([batch])
        return
    named = file.read()
    for staged in named["staged_path"].unique().to_pylist():
        rows = named.filter(pc.equal(named["staged_path"], staged))["staged_row"].to_numpy()
        source = pq.ParquetFile(staged)
        first = 0
        for group in range(source.num_row_groups):
            end = first + source.metadata.row_group(group).num_rows
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, end)]
            if len(here):
                yield source.read_row_group(group).take(pa.array(here - first))
            first = end


def _segment(rows: Sequence[dict], words_of: Segmenter) -> SegmentedDocuments:
    text = _text(rows)
    if "words" in rows[0]:
        words = [word for row in rows for sentence in row["words"] for word in (*sentence, "\n")]
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        sentences = [len(row["words"]) for row in rows]
    else:
        lengths = words_of.lengths(text)
        sentences = [len(row["sentences"]) for row in rows]
    return SegmentedDocuments(
        [row["doc_id"] for row in rows],
        [row["source_uri"] for row in rows],
        text,
        lengths,
        np.array(sentences, dtype=np.int64),
    )


def _line_ends(batch: SegmentedDocuments) -> np.ndarray:
    """Where each line's end stands in the text, [lines]."""
    codes = np.frombuffer(batch.text.encode("utf-32-le"), dtype=np.uint32)
    return np.flatnonzero(codes == 10)


def _characters(batch: SegmentedDocuments, gave: np.ndarray) -> int:
    """Characters of the documents that gave an instance, line ends left out."""
    ends = _line_ends(batch)[np.cumsum(batch.sentences) - 1] + 1
    return int((np.diff(ends, prepend=0) - batch.sentences)[gave].sum())


def _documents_table(batch: SegmentedDocuments) -> pa.Table:
    """Rows of the documents file, built from offsets: no word becomes a Python string of its own again."""
    line_ends = _line_ends(batch)
    last_lines = np.cumsum(batch.sentences) - 1
    begins = np.concatenate([[0], line_ends[last_lines] + 1])
    texts = [
        batch.text[a:b] for a, b in zip(begins[:-1].tolist(), line_ends[last_lines].tolist(), strict=True)
    ]
    codes = np.frombuffer(batch.text.encode("utf-32-le"), dtype=np.uint32)
    width = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    width[line_ends] = 0
    bytes_before = np.concatenate([[0], np.cumsum(width)])
    ends = np.cumsum(batch.word_lengths)  # of words, in characters
    is_line_end = np.isin(ends - 1, line_ends)
    offsets = np.append(bytes_before[(ends - batch.word_lengths)[~is_line_end]], bytes_before[-1])
    content = batch.text.replace("\n", "").encode("utf-8")
    words = pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32).tobytes()), pa.py_buffer(content)
    )
    # words before each line's end, line ends themselves not counted
    per_line = np.flatnonzero(is_line_end) - np.arange(len(line_ends))
    lines = list_column(words, np.concatenate([[0], per_line]))
    nested = list_column(lines, np.concatenate([[0], np.cumsum(batch.sentences)]))
    words_before = np.concatenate([[0], per_line[np.cumsum(batch.sentences) - 1]])
    counts = pa.array(np.diff(words_before), pa.int64())
    return pa.table([batch.doc_ids, batch.source_uris, texts, nested, counts], schema=DOCUMENTS)


def _concatenate(parts: Sequence[Instances]) -> Instances:
    lengths = np.concatenate([part.lengths for part in parts])
    return Instances(
        np.concatenate([part.instance_ids for part in parts]),
        np.concatenate([part.documents for part in parts]),
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([part.word_starts for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([part.segment_b_start for part in parts]),
        np.concatenate([part.sop_labels for part in parts]),
    )
