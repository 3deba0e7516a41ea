"""Building a shard: the documents of one piece in, instances and a documents file out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.cleaning import sides_of
from data.files import remembered
from data.instances import (
    OBJECTIVES,
    Instances,
    MaskRule,
    Shard,
    build_instances,
    instance_table,
    length_histogram,
    list_column,
    mask_vocabulary,
    read_similar_words,
    tokenize_documents,
    write_shard,
)
from data.options import values_of
from data.refresh.settings import RefreshSettings
from data.segmentation import Segmenter
from data.tokenization import TOKENIZER_CONFIG, Tokenizer, load_tokenizer
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
_BATCH_CHARACTERS = 1 << 18  # in memory at once


@dataclass(frozen=True, slots=True)
class Piece:
    """The documents of one shard that is to be built."""

    number: int
    # staged Parquet: rows of staged files or of a shard's documents file, and which have an order
    assigned_path: Path
    replaces: str | None  # path of the current shard whose place it takes, if any


class _Part(NamedTuple):
    """What one batch of documents gives."""

    instances: list[Instances]  # one for each copy
    table: pa.Table  # rows of the documents file
    sides: np.ndarray  # [D], see `data.cleaning.sides_of`
    usable: np.ndarray  # [D], whether a document gave an instance


@remembered
def _tokenizer(files: tuple[Path, ...]) -> Tokenizer:
    return load_tokenizer(files[0])


@remembered
def segmenter(dictionaries: tuple[str, ...]) -> Segmenter:
    """Return the process's segmenter with these user dictionaries, loaded at first use."""
    return Segmenter([Path(path) for path in dictionaries])


def build_shard(
    piece: Piece, settings: RefreshSettings, tokenizer_path: Path, similar_words: Path | None
) -> Shard | None:
    """Segment, tokenise, cut and mask the documents of a piece; None if they give no instance.

    A pure function of the documents and the arguments. The shard counts the documents that give an instance.
    """
    tokenizer = _tokenizer((tokenizer_path, tokenizer_path.with_name(TOKENIZER_CONFIG)))
    words_of = segmenter(settings.dictionary)
    parts: list[_Part] = []
    doc_ids: list[str] = []
    for rows in _batches(piece.assigned_path):
        parts.append(_build_part(rows, len(doc_ids), words_of, tokenizer, settings))
        doc_ids += parts[-1].table["doc_id"].to_pylist()
    instances = _concatenate([made for part in parts for made in part.instances])
    if not len(instances):
        return None
    similar = read_similar_words(similar_words) if similar_words else None
    table = instance_table(
        instances,
        doc_ids,
        np.concatenate([part.sides for part in parts]),
        mask_vocabulary(tokenizer, similar),
        MaskRule(objective=settings.objective, **values_of(settings.masking)),
        max_seq_length=settings.max_seq_length,
        seed=settings.seed,
        similar_file=similar_words.name if similar_words else None,
    )
    return _write_shard(instances, table, parts, Workspace(settings.workspace), settings.corpus)


def _build_part(
    rows: Sequence[dict], first: int, words_of: Segmenter, tokenizer: Tokenizer, settings: RefreshSettings
) -> _Part:
    """Make the instances of a batch; `first` is the number of its first document within the shard."""
    length, objective = settings.max_seq_length, OBJECTIVES[settings.objective]
    sides = sides_of([row["text"] for row in rows])
    if objective.packs:
        order = np.argsort(sides, kind="stable")
        rows, sides = [rows[number] for number in order], sides[order]
    text = _text(rows)
    words = words_of.lengths(text)
    sentences = np.array([row["text"].count("\n") + 1 for row in rows])
    table = _documents_table(rows, text, words, sentences)
    doc_ids = [row["doc_id"] for row in rows]
    documents = tokenize_documents(text, words, sentences, tokenizer, length - 3)
    instances = []
    for copy in range(settings.instances.copies):
        made = build_instances(
            documents,
            doc_ids,
            tokenizer,
            objective,
            max_seq_length=length,
            sop=np.array([row["has_order"] for row in rows]),
            copy=copy,
            seed=settings.seed,
        )
        instances.append(replace(made, documents=made.documents + first))
    return _Part(instances, table, sides, np.diff(documents.first_piece) > 0)


def _write_shard(
    instances: Instances, table: pa.Table, parts: Sequence[_Part], workspace: Workspace, corpus: str
) -> Shard:
    documents = pa.concat_tables([part.table for part in parts]).combine_chunks()
    usable = np.concatenate([part.usable for part in parts])
    sentences = pc.list_value_length(documents["words"]).to_numpy()
    characters = pc.utf8_length(documents["text"]).to_numpy() - (sentences - 1)  # without line ends
    return Shard(
        *write_shard(table, documents, workspace, corpus),
        instances=len(instances),
        tokens=int(instances.cu_seqlens[-1]),
        documents=int(usable.sum()),
        characters=int(characters[usable].sum()),
        words=pc.sum(documents["word_count"]).as_py(),
        sentences=int(sentences.sum()),
        length_histogram=length_histogram(instances.lengths),
    )


def _batches(path: Path) -> Iterator[list[dict]]:
    """Yield the documents of an assigned file, a batch at a time."""
    rows: list[dict] = []
    size = 0
    for row in _assigned(path):
        rows.append(row)
        size += len(row["text"]) - row["text"].count("\n")
        if size >= _BATCH_CHARACTERS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def read_pieces(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the text of the documents in assigned files by batches; a line end follows each sentence."""
    for path in paths:
        for rows in _batches(path):
            yield _text(rows)


def _text(rows: Sequence[dict]) -> str:
    return "".join([f"{row['text']}\n" for row in rows])


def _assigned(path: Path) -> Iterator[dict]:
    """Yield the rows that an assigned file names, of which a row group is in memory at a time."""
    assigned = pq.read_table(path)
    for file in assigned["file"].unique().to_pylist():
        here = assigned.filter(pc.equal(assigned["file"], file))
        rows, has_order = here["row"].to_numpy(), here["has_order"]
        source = pq.ParquetFile(file)
        first = 0
        for group in range(source.num_row_groups):
            end = first + source.metadata.row_group(group).num_rows
            begin, until = np.searchsorted(rows, [first, end]).tolist()
            if begin < until:
                table = source.read_row_group(group, DOCUMENTS.names[:3])
                table = table.take(pa.array(rows[begin:until] - first))
                yield from table.append_column("has_order", has_order.slice(begin, until - begin)).to_pylist()
            first = end


def _documents_table(
    rows: Sequence[dict], text: str, word_lengths: np.ndarray, sentences: np.ndarray
) -> pa.Table:
    """Make rows of the documents file from offsets, so that no word becomes a Python string again.

    `word_lengths` [w] in characters, a line end being a word; `sentences` [D], each of which ends a line.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    line_ends = np.flatnonzero(codes == ord("\n"))  # positions in the text, [lines]
    width = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    width[line_ends] = 0
    bytes_before = np.concatenate([[0], np.cumsum(width)])
    ends = np.cumsum(word_lengths)  # of words, in characters
    is_line_end = np.isin(ends - 1, line_ends)
    offsets = np.append(bytes_before[(ends - word_lengths)[~is_line_end]], bytes_before[-1])
    content = text.replace("\n", "").encode("utf-8")
    words = pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32).tobytes()), pa.py_buffer(content)
    )
    # the first word of each line, line ends not counted, and the first line of each document
    first_words = np.concatenate([[0], np.flatnonzero(is_line_end) - np.arange(len(line_ends))])
    first_lines = np.concatenate([[0], np.cumsum(sentences)])
    nested = list_column(list_column(words, first_words), first_lines)
    counts = pa.array(np.diff(first_words[first_lines]), pa.int64())
    as_read = ([row[name] for row in rows] for name in ("doc_id", "source_uri", "text"))
    return pa.table([*as_read, nested, counts], schema=DOCUMENTS)


def _concatenate(parts: Sequence[Instances]) -> Instances:
    names = [one.name for one in fields(Instances)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    lengths = np.concatenate([part.lengths for part in parts])
    return Instances(**joined | {"cu_seqlens": np.concatenate([[0], np.cumsum(lengths)])})
