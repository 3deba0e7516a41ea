"""Reading a source: raw text in, cleaned documents and a listing of everything it held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cleaning import (
    BANDS,
    CleaningRules,
    DuplicateRules,
    GuardRules,
    Measures,
    QualityRules,
    clean_and_count,
    count_hits,
    drop_reasons,
    make_guard,
    measure,
    sketch,
    split_sentences,
)
from data.files import replacing
from data.instances import list_column
from data.sources import REPLACEMENT, Dropped, RawDocument, TextFormat, document_id, read_documents

READING_VERSION = 8  # raise it when cleaning, splitting or filtering change what they give

# everything a source held in order, dropped documents included; stored as long as a version uses it
LISTING = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source_uri", pa.string()),
        ("staged_row", pa.int64()),  # row of the staged text; null if dropped
        ("raw_characters", pa.int64()),
        ("characters", pa.int64()),
        ("sentences", pa.int32()),
        ("encoding", pa.string()),  # of its file; null for UTF-8
        ("text_format", pa.string()),  # as its file was read, if that is plain text
        ("undecodable", pa.int32()),  # characters that could not be decoded, removed
        ("placeholders", pa.map_(pa.string(), pa.int32())),  # personal data replaced, by kind
        ("guard_hits", pa.int32()),  # n-grams of guarded evaluation sets in it
        ("stage", pa.string()),  # that dropped it; null if kept
        ("reason", pa.string()),
        # hashes of its sentences, and of the bands that near duplicates share; null if dropped
        ("sentence_hashes", pa.list_(pa.uint64())),
        ("sentence_lengths", pa.list_(pa.int32())),
        ("bands", pa.list_(pa.uint32(), BANDS)),
    ]
)
# the text of kept documents, until it is in a shard
STAGED = pa.schema(
    [("doc_id", pa.string()), ("source_uri", pa.string()), ("sentences", pa.list_(pa.string()))]
)
_BATCH_CHARACTERS = 1 << 18  # in memory at once
_BATCH_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class ReadingRules:
    """How documents are made of a source."""

    text_format: TextFormat = "auto"
    text_field: str | None = None
    cleaning: CleaningRules = field(default_factory=CleaningRules)
    quality: QualityRules = field(default_factory=QualityRules)
    duplicates: DuplicateRules = field(default_factory=DuplicateRules)
    guard: GuardRules = field(default_factory=GuardRules)


class _Clean(NamedTuple):
    doc_id: str
    source_uri: str
    raw_characters: int
    encoding: str | None
    text_format: str | None
    undecodable: int
    placeholders: dict[str, int]
    text: str
    sentences: list[str]


class _Batch(NamedTuple):
    dropped: list[Dropped]
    places: list[int]  # of the dropped items among all items of the batch
    documents: list[_Clean]
    measures: Measures
    reasons: list[tuple[str, str] | None]  # stage and reason, of each document
    hits: np.ndarray


def _clean(raw: RawDocument, rules: ReadingRules) -> _Clean:
    text, placeholders = clean_and_count(raw.text, rules.cleaning)
    return _Clean(
        document_id(text),
        raw.source_uri,
        len(raw.text),
        raw.encoding,
        raw.text_format,
        raw.text.count(REPLACEMENT),
        placeholders,
        text,
        split_sentences(text),
    )


def read_source(uri: str, listing: Path, staged: Path, rules: ReadingRules) -> None:
    """Read, clean, split and filter a source; write its listing and the text of kept documents.

    Syncs nothing: the listings of many sources are synced together.
    """
    with (
        replacing(listing, durable=False) as listing_tmp,
        replacing(staged, durable=False) as staged_tmp,
        pq.ParquetWriter(listing_tmp, LISTING, compression="zstd", use_dictionary=False) as listing_writer,
        pq.ParquetWriter(staged_tmp, STAGED, compression="zstd", use_dictionary=False) as text_writer,
    ):
        row = 0
        for batch in _batches(uri, rules):
            documents = _kept(batch)
            listing_writer.write_table(_listing_table(batch, rules, row))
            row += len(documents)
            if documents:
                text_writer.write_table(_text_table(documents))


def _text_table(documents: Sequence[_Clean]) -> pa.Table:
    counts = [0, *(len(d.sentences) for d in documents)]
    sentences = pa.array([s for d in documents for s in d.sentences], pa.string())
    doc_ids, uris = [d.doc_id for d in documents], [d.source_uri for d in documents]
    return pa.table([doc_ids, uris, list_column(sentences, np.cumsum(counts))], schema=STAGED)


def _kept(batch: _Batch) -> list[_Clean]:
    return [d for d, reason in zip(batch.documents, batch.reasons, strict=True) if reason is None]


def _batches(uri: str, rules: ReadingRules) -> Iterator[_Batch]:
    documents: list[_Clean] = []
    dropped: list[Dropped] = []
    places: list[int] = []
    size = 0
    for item in read_documents(uri, text_format=rules.text_format, text_field=rules.text_field):
        if isinstance(item, Dropped):
            places.append(len(documents) + len(dropped))
            dropped.append(item)
        else:
            documents.append(_clean(item, rules))
            size += len(item.text)
        if size > _BATCH_CHARACTERS or len(documents) + len(dropped) > _BATCH_ROWS:
            yield _judge(documents, dropped, places, rules)
            documents, dropped, places, size = [], [], [], 0
    if documents or dropped:
        yield _judge(documents, dropped, places, rules)


def _judge(documents: list[_Clean], dropped: list[Dropped], places: list[int], rules: ReadingRules) -> _Batch:
    sentences = [document.sentences for document in documents]
    measures = measure(sentences)
    filtered = drop_reasons([document.text for document in documents], measures, rules.quality)
    reasons = [("filter", reason) if reason else None for reason in filtered]
    hits = np.zeros(len(documents), dtype=np.int64)
    if rules.guard.files and documents:
        guard = make_guard(rules.guard.files, rules.guard.ngram, rules.cleaning)
        hits = count_hits(guard, sentences)
        if rules.guard.action == "drop":
            for number in np.flatnonzero(hits).tolist():
                reasons[number] = reasons[number] or ("guard", "in_evaluation_set")
    return _Batch(dropped, places, documents, measures, reasons, hits)


def _listing_table(batch: _Batch, rules: ReadingRules, staged_row: int) -> pa.Table:
    """Rows of a batch in the order of the source; `staged_row` is the row of its first text that is kept."""
    columns = _listing_columns(batch, rules, staged_row)
    arrays = [
        value if isinstance(value, pa.Array) else pa.array(value, LISTING.field(name).type)
        for name, value in ((name, columns[name]) for name in LISTING.names)
    ]
    table = pa.Table.from_arrays(arrays, schema=LISTING)
    if not batch.dropped:
        return table
    dropped = pa.Table.from_pylist([_dropped_row(item) for item in batch.dropped], LISTING)
    is_document = np.ones(len(table) + len(dropped), dtype=bool)
    is_document[batch.places] = False
    order = np.empty(len(is_document), dtype=np.int64)
    order[is_document] = np.arange(len(table))
    order[~is_document] = len(table) + np.arange(len(dropped))
    return pa.concat_tables([table, dropped]).take(pa.array(order))


def _listing_columns(
    batch: _Batch, rules: ReadingRules, staged_row: int
) -> dict[str, pa.Array | np.ndarray | list]:
    documents, measures = batch.documents, batch.measures
    is_kept = np.array([reason is None for reason in batch.reasons], dtype=bool)
    lengths = pa.array(measures.sentence_lengths.astype(np.int32))
    return {
        "doc_id": [d.doc_id for d in documents],
        "source_uri": [d.source_uri for d in documents],
        "staged_row": pa.array(staged_row + np.cumsum(is_kept) - 1, pa.int64(), mask=~is_kept),
        "raw_characters": [d.raw_characters for d in documents],
        "characters": measures.characters,
        "sentences": np.diff(measures.first_sentence),
        "encoding": [d.encoding for d in documents],
        "text_format": [d.text_format for d in documents],
        "undecodable": [d.undecodable for d in documents],
        "placeholders": [list(d.placeholders.items()) or None for d in documents],
        "guard_hits": batch.hits,
        "stage": [reason and reason[0] for reason in batch.reasons],
        "reason": [reason and reason[1] for reason in batch.reasons],
        "sentence_hashes": list_column(pa.array(measures.sentence_hashes), measures.first_sentence),
        "sentence_lengths": list_column(lengths, measures.first_sentence),
        "bands": _bands(measures, is_kept, rules.duplicates),
    }


def _dropped_row(item: Dropped) -> dict[str, object]:
    """Listing row of an item that could not become a document."""
    row = {"source_uri": item.source_uri, "raw_characters": item.characters}
    zeros = dict.fromkeys(("characters", "sentences", "undecodable", "guard_hits"), 0)
    return {**row, **zeros, "stage": item.stage, "reason": item.reason}


def _bands(measures: Measures, is_kept: np.ndarray, rules: DuplicateRules) -> pa.Array:
    if rules.near is None or not len(is_kept):
        return pa.nulls(len(is_kept), LISTING.field("bands").type)
    bands = pa.array(sketch(measures.letters, rules.ngram).ravel())
    return pa.FixedSizeListArray.from_arrays(bands, BANDS, mask=pa.array(~is_kept))


def read_sentences(sources: Sequence[str], rules: ReadingRules = ReadingRules()) -> Iterator[str]:
    """Sentences of all documents that a refresh would keep, duplicates included."""
    for uri in sources:
        for batch in _batches(uri, rules):
            for document in _kept(batch):
                yield from document.sentences
