"""Records that pass between the stages of a refresh, and the error for inputs that cannot be used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


class InputError(ValueError):
    """An input that cannot be used, found before any work started. One line: what, where, what to do."""


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document as its source holds it, decoded."""

    text: str
    source_uri: str  # path, then what tells it from others in the file: "laws.jsonl.gz#line=12"
    encoding: str | None = None  # that its file was taken to be in; None: UTF-8


@dataclass(frozen=True, slots=True)
class Document:
    """One document, cleaned and split into sentences."""

    doc_id: str  # first 16 hex digits of the sha256 of the cleaned text
    source_uri: str
    characters: int  # of the raw text
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something a stage did not pass on: counted in the funnel, kept as a row of `documents`."""

    source_uri: str
    stage: str
    reason: str
    characters: int
    doc_id: str | None = None


def document_id(text: str) -> str:
    """Stable id of a cleaned text.

    >>> document_id("继续")
    '7c9691192f1b7340'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
