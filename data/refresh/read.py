"""Reading a source: raw text in, cleaned documents and a listing of everything it held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cleaning import (
    BANDS,
    Measures,
    clean_and_count,
    count_hits,
    drop_reasons,
    languages_of,
    make_guard,
    measure,
    sketch,
    split_sentences,
)
from data.files import replacing
from data.instances import list_column
from data.refresh.settings import RefreshSettings
from data.sources import REPLACEMENT, Dropped, RawDocument, SourceRules, document_id, read_documents

READING_VERSION = 26  # raise it when cleaning, splitting or filtering change what they give

# everything some sources held in order, dropped documents included; stored as long as a version uses it
LISTING = pa.schema(
    [
        ("source", pa.int32()),  # its number among those of the listing
        ("doc_id", pa.string()),
        ("source_uri", pa.string()),
        ("staged_row", pa.int64()),  # row of the staged text; null if dropped
        ("raw_characters", pa.int64()),
        ("characters", pa.int64()),
        ("sentences", pa.int32()),
        ("encoding", pa.string()),  # of its file; null for UTF-8
        ("text_format", pa.string()),  # as its file was read, if that is plain text
        ("beginning", pa.string()),  # of its cleaned text; of a row without the field to read, its fields
        ("undecodable", pa.int32()),  # characters that could not be decoded, removed
        ("placeholders", pa.map_(pa.string(), pa.int32())),  # personal data replaced, by kind
        ("guard_hits", pa.int32()),  # n-grams of guarded evaluation sets in it
        ("stage", pa.string()),  # that dropped it; null if kept
        ("reason", pa.string()),
        # hashes of its sentences, and of the bands that near duplicates share; null if dropped
        ("sentence_hashes", pa.list_(pa.uint64())),
        ("sentence_lengths", pa.list_(pa.int32())),
        ("bands", pa.list_(pa.uint32(), BANDS)),
        ("language", pa.string()),  # null unless the rules name languages
    ]
)
# kept documents, sentences joined by line ends, until they are in a shard
STAGED = pa.schema([("doc_id", pa.string()), ("source_uri", pa.string()), ("text", pa.string())])
_AS_READ = ("source", "doc_id", "source_uri", "raw_characters", "encoding", "text_format", "undecodable")
_BATCH_CHARACTERS = 1 << 18  # in memory at once
_BATCH_ROWS = 50_000
_BEGINNING = 100  # characters


class _Item(NamedTuple):
    """A cleaned document, or what could not become one."""

    source: int
    source_uri: str
    raw_characters: int
    doc_id: str | None = None
    encoding: str | None = None
    text_format: str | None = None
    undecodable: int = 0
    placeholders: dict[str, int] = {}
    text: str = ""
    beginning: str = ""
    sentences: Sequence[str] = ()
    dropped: tuple[str, str] | None = None  # stage and reason


class _Batch(NamedTuple):
    items: list[_Item]
    measures: Measures
    languages: Sequence[str | None]  # of each item; None if the rules name none
    dropped: list[tuple[str, str] | None]  # stage and reason, of each item
    hits: np.ndarray

    def kept(self) -> list[_Item]:
        return [item for item, dropped in zip(self.items, self.dropped, strict=True) if dropped is None]


def read_sources(uris: Sequence[str], listing: Path, staged: Path, settings: RefreshSettings) -> None:
    """Read, clean, split and filter sources; write their listing and the text of kept documents.

    Syncs nothing: many listings are synced together.
    """
    with (
        replacing(listing, durable=False) as listing_tmp,
        replacing(staged, durable=False) as staged_tmp,
        pq.ParquetWriter(
            listing_tmp, LISTING, compression="zstd", use_dictionary=False, write_page_checksum=True
        ) as listing_writer,
        pq.ParquetWriter(staged_tmp, STAGED, compression="zstd", use_dictionary=False) as text_writer,
    ):
        row = 0
        for batch in _batches(uris, settings):
            documents = batch.kept()
            listing_writer.write_table(_listing_table(batch, settings, row))
            row += len(documents)
            if documents:
                rows = [(one.doc_id, one.source_uri, "\n".join(one.sentences)) for one in documents]
                text_writer.write_table(pa.table([*zip(*rows, strict=True)], schema=STAGED))


def _batches(uris: Sequence[str], settings: RefreshSettings) -> Iterator[_Batch]:
    items: list[_Item] = []
    size, reading = 0, settings.reading
    for source, uri in enumerate(uris):
        for found in read_documents(uri, text_format=reading.text_format, text_field=reading.text_field):
            if isinstance(found, Dropped):
                why = "read", found.reason
                # a name in JSON may be half a character, which no file can hold
                shown = "".join(one if one.isprintable() else "?" for one in found.fields[:_BEGINNING])
                items.append(_Item(source, found.source_uri, found.characters, beginning=shown, dropped=why))
            else:
                items.append(_clean(source, found, settings))
                size += len(found.text)
            if size > _BATCH_CHARACTERS or len(items) > _BATCH_ROWS:
                yield _judge(items, settings)
                items, size = [], 0
    if items:
        yield _judge(items, settings)


def _clean(source: int, raw: RawDocument, settings: RefreshSettings) -> _Item:
    text, placeholders = clean_and_count(raw.text, settings.cleaning)
    return _Item(
        source,
        raw.source_uri,
        len(raw.text),
        document_id(text),
        raw.encoding,
        raw.text_format,
        raw.text.count(REPLACEMENT),
        placeholders,
        text,
        text[:_BEGINNING],
        split_sentences(text),
    )


def _judge(items: list[_Item], settings: RefreshSettings) -> _Batch:
    sentences = [item.sentences for item in items]
    measures = measure(sentences)
    texts = [item.text for item in items]
    languages = languages_of(texts) if settings.quality.languages else [None] * len(texts)
    filtered = drop_reasons(texts, measures, settings.quality, languages, settings.cleaning)
    pairs = zip(items, filtered, strict=True)
    dropped = [item.dropped or (("filter", reason) if reason else None) for item, reason in pairs]
    hits = np.zeros(len(items), dtype=np.int64)
    if settings.guard.files:
        own = settings.guard
        hits = count_hits(make_guard(own.files, own.ngram, settings.cleaning, own.share), sentences)
        if settings.guard.action == "drop":
            for number in np.flatnonzero(hits).tolist():
                dropped[number] = dropped[number] or ("guard", "in_evaluation_set")
    return _Batch(items, measures, languages, dropped, hits)


def _listing_table(batch: _Batch, settings: RefreshSettings, staged_row: int) -> pa.Table:
    """Make rows of a batch in the order of the sources; `staged_row` is that of its first kept text."""
    items, measures = batch.items, batch.measures
    is_kept = np.array([dropped is None for dropped in batch.dropped])
    bands = pa.nulls(len(items), LISTING.field("bands").type)
    if settings.duplicates.near is not None:
        hashes = pa.array(sketch(measures.letters, settings.duplicates.ngram).ravel())
        bands = pa.FixedSizeListArray.from_arrays(hashes, BANDS, mask=pa.array(~is_kept))
    lengths = pa.array(measures.sentence_lengths.astype(np.int32))
    columns = {
        **{name: [getattr(item, name) for item in items] for name in _AS_READ},
        "beginning": [item.beginning or None for item in items],
        "staged_row": pa.array(staged_row + np.cumsum(is_kept) - 1, mask=~is_kept),
        "characters": measures.characters,
        "sentences": np.diff(measures.first_sentence),
        "placeholders": [list(item.placeholders.items()) or None for item in items],
        "guard_hits": batch.hits,
        "stage": [dropped and dropped[0] for dropped in batch.dropped],
        "reason": [dropped and dropped[1] for dropped in batch.dropped],
        "sentence_hashes": list_column(pa.array(measures.sentence_hashes), measures.first_sentence),
        "sentence_lengths": list_column(lengths, measures.first_sentence),
        "bands": bands,
        "language": batch.languages,
    }
    return pa.table(columns, schema=LISTING)


def read_sentences(uri: str, left_out: Counter[str], reading: SourceRules | None = None) -> Iterator[str]:
    """Yield the sentences of a source's documents that the default rules would keep, duplicates included.

    Counts in `left_out` the reasons why others are not.
    """
    settings = RefreshSettings(corpus="raw", reading=reading or SourceRules())
    for batch in _batches([uri], settings):
        left_out.update(dropped[1] for dropped in batch.dropped if dropped)
        for document in batch.kept():
            yield from document.sentences
