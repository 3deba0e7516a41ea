"""First half of a refresh: one source file in, its cleaned documents and the list of everything it held
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.cleaning import clean_text
from data.decoding import REPLACEMENT
from data.files import replacing
from data.filtering import drop_reason
from data.records import Document, Dropped, RawDocument, document_id
from data.sentences import split_sentences
from data.sources import TextFormat, read_documents

READING_VERSION = 1  # of cleaning, splitting and filtering: a change of what they give raises it

# everything a source held, kept or not, in order: small, and kept as long as a version uses it
LISTING = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source_uri", pa.string()),
        ("raw_characters", pa.int64()),
        ("characters", pa.int64()),
        ("sentences", pa.int32()),
        ("undecodable", pa.int32()),  # characters that could not be decoded, removed
        ("stage", pa.string()),  # where it was dropped; null if it was kept
        ("reason", pa.string()),
    ]
)
# the text of what was kept, until it is in a shard
STAGED = pa.schema(
    [("doc_id", pa.string()), ("source_uri", pa.string()), ("sentences", pa.list_(pa.string()))]
)
_BATCH_CHARACTERS = 4_000_000  # held in memory at once


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingRules:
    """What makes a document of a source's text."""

    text_format: TextFormat = "auto"
    text_field: str | None = None
    min_characters: int = 5
    min_han_share: float = 0.3


def clean_document(raw: RawDocument) -> Document:
    """The document a raw one becomes: cleaned and split into sentences."""
    text = clean_text(raw.text)
    return Document(document_id(text), raw.source_uri, len(raw.text), tuple(split_sentences(text)))


def read_source(path: Path, listing: Path, staged: Path, rules: ReadingRules) -> None:
    """Read, clean, split and filter one file; write what it held to `listing` and the kept text to
    `staged`.
    """
    with (
        replacing(listing) as listing_tmp,
        replacing(staged) as staged_tmp,
        pq.ParquetWriter(listing_tmp, LISTING, compression="zstd") as listing_writer,
        pq.ParquetWriter(staged_tmp, STAGED, compression="zstd") as staged_writer,
    ):
        for rows, documents in _batches(path, rules):
            listing_writer.write_table(pa.Table.from_pylist(rows, LISTING))
            if documents:
                staged_writer.write_table(
                    pa.table(
                        {
                            "doc_id": [d.doc_id for d in documents],
                            "source_uri": [d.source_uri for d in documents],
                            "sentences": [list(d.sentences) for d in documents],
                        },
                        STAGED,
                    )
                )


def _batches(path: Path, rules: ReadingRules) -> Iterator[tuple[list[dict], list[Document]]]:
    rows: list[dict] = []
    documents: list[Document] = []
    size = 0
    for item in read_documents(path, text_format=rules.text_format, text_field=rules.text_field):
        if isinstance(item, Dropped):
            rows.append(_listing_row(item.source_uri, item.characters, stage=item.stage, reason=item.reason))
        else:
            document = clean_document(item)
            reason = drop_reason(
                document, min_characters=rules.min_characters, min_han_share=rules.min_han_share
            )
            rows.append(
                _listing_row(
                    item.source_uri,
                    len(item.text),
                    doc_id=document.doc_id,
                    characters=sum(map(len, document.sentences)),
                    sentences=len(document.sentences),
                    undecodable=item.text.count(REPLACEMENT),
                    stage="filter" if reason else None,
                    reason=reason,
                )
            )
            if reason is None:
                documents.append(document)
            size += len(item.text)
        if size > _BATCH_CHARACTERS or len(rows) > 100_000:
            yield rows, documents
            rows, documents, size = [], [], 0
    if rows:
        yield rows, documents


def _listing_row(source_uri: str, raw_characters: int, **known: object) -> dict[str, object]:
    blank = {"doc_id": None, "characters": 0, "sentences": 0, "undecodable": 0, "stage": None, "reason": None}
    return {"source_uri": source_uri, "raw_characters": raw_characters, **blank, **known}


def read_sentences(path: Path, rules: ReadingRules = ReadingRules()) -> Iterator[str]:
    """Sentences of the documents of one file that a refresh would keep, repeated ones included."""
    for _, documents in _batches(path, rules):
        for document in documents:
            yield from document.sentences
