"""Reading raw documents from files: plain text, JSONL, CSV/TSV and Parquet, each also as .gz or .zst.

Nothing is read whole. What cannot be used is yielded as `Dropped` with its place and reason, never lost.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from data.decoding import SAMPLE_BYTES, decoded_lines, detect_encoding
from data.records import Dropped, InputError, RawDocument

TextFormat = Literal["auto", "bert", "document"]
TEXT_FORMATS = ("auto", "bert", "document")
SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".html": "text",
    ".htm": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".zst")
TEXT_FIELDS = ("text", "content", "正文", "内容")  # the first that is there, unless one is named
MAX_DOCUMENT_CHARACTERS = 1_000_000  # a longer document is cut into several
MAX_ROW_CHARACTERS = 32 << 20  # of a JSONL line
MAX_EXPANSION = 200  # decompressed bytes to one compressed one; real text stays under 30
STAGE = "read"


def file_kind(path: Path) -> str | None:
    """How a file is read, by its name, or None if it is not supported."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1]) if suffixes else None


def find_files(source: str) -> list[Path]:
    """Files a source names, in the order of their names: a file, a folder (searched through), or a glob.

    Raises InputError when there is nothing to read.
    """
    path = Path(source).expanduser()
    if path.is_file():
        if file_kind(path) is None:
            raise InputError(f"{path}: not a supported input; supported are {_supported()}")
        return [path]
    if path.is_dir():
        found = (p for p in path.rglob("*") if p.is_file())
    else:
        found = (Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
    files = sorted(p for p in found if file_kind(p) is not None)
    if not files:
        what = "holds no file that can be read" if path.is_dir() else "does not exist"
        raise InputError(f"source {source} {what}; supported are {_supported()}")
    return files


def _supported() -> str:
    return ", ".join(SUFFIXES) + ", each also with " + " or ".join(COMPRESSIONS)


class _ExpansionLimit(io.RawIOBase):
    """A decompressed stream that stops where a bomb would go on."""

    def __init__(self, stream: BinaryIO, compressed_bytes: int):
        self.stream = stream
        self.left = max(compressed_bytes * MAX_EXPANSION, 1 << 24)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        content = self.stream.read(len(buffer))
        self.left -= len(content)
        if self.left < 0:
            raise OSError(f"expands to more than {MAX_EXPANSION} times its size")
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self.stream.close()
        super().close()


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file, going by its first bytes and not by its name."""
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == b"\x1f\x8b":
            yield io.BufferedReader(
                _ExpansionLimit(gzip.GzipFile(fileobj=file), path.stat().st_size), 1 << 18
            )
        elif magic == b"\x28\xb5\x2f\xfd":
            stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            yield io.BufferedReader(_ExpansionLimit(stream, path.stat().st_size), 1 << 18)
        else:
            yield file


def read_documents(
    path: Path, *, text_format: TextFormat = "auto", text_field: str | None = None
) -> Iterator[RawDocument | Dropped]:
    """Documents of one file in order, and what could not be read as `Dropped` with stage "read"."""
    kind = file_kind(path)
    try:
        if kind == "parquet":
            yield from _read_parquet(path, text_field)
            return
        with _open(path) as file:
            sample = file.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
            encoding = detect_encoding(sample, whole=len(sample) < SAMPLE_BYTES // 2)
            if encoding is None:
                reason = "empty_file" if not sample else "not_text"
                yield Dropped(str(path), STAGE, reason, 0)
                return
            lines = decoded_lines(file, encoding)
            if kind == "text":
                yield from _read_text(path, lines, text_format)
            elif kind == "jsonl":
                yield from _read_jsonl(path, lines, text_field)
            else:
                yield from _read_table(path, lines, "\t" if kind == "tsv" else ",", text_field)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException, csv.Error) as error:
        # what was read before the damage is kept; the damage is a row of its own
        yield Dropped(f"{path}#{_one_line(error)}", STAGE, "unreadable_file", 0)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _cut(text: str, uri: str) -> Iterator[RawDocument]:
    """A document, in parts if it is longer than a document may be; parts end at a line or sentence end."""
    if len(text) <= MAX_DOCUMENT_CHARACTERS:
        yield RawDocument(text, uri)
        return
    begin, part = 0, 1
    while begin < len(text):
        end = min(begin + MAX_DOCUMENT_CHARACTERS, len(text))
        if end < len(text):
            ends = [text.rfind(mark, begin + MAX_DOCUMENT_CHARACTERS // 2, end) for mark in "\n。！？"]
            end = max(ends) + 1 if max(ends) > 0 else end
        yield RawDocument(text[begin:end], f"{uri}#part={part}")
        begin, part = end, part + 1


def _is_bert_format(lines: list[str]) -> bool:
    """Whether blank lines separate documents of a sentence a line, or paragraphs of one document."""
    blocks = "\n".join(line.strip() for line in lines).strip("\n").split("\n\n")
    written = sum(1 for line in lines if line.strip())
    return len(blocks) > 1 and written >= 2 * len([block for block in blocks if block.strip()])


def _read_text(path: Path, lines: Iterator[str], text_format: TextFormat) -> Iterator[RawDocument]:
    if text_format == "auto":
        head = list(islice(lines, 2000))
        text_format = "bert" if ".bert" in path.suffixes or _is_bert_format(head) else "document"
        lines = chain(head, lines)
    block: list[str] = []
    size, number, begin = 0, 0, 1
    for number, line in enumerate(lines, 1):
        ends_document = text_format == "bert" and not line.strip()
        if ends_document or size > 4 * MAX_DOCUMENT_CHARACTERS:
            if block:
                yield from _cut("\n".join(block), f"{path}#line={begin}")
            block, size, begin = [], 0, number + 1
        if not ends_document:
            block.append(line)
            size += len(line)
    if block or not number:
        yield from _cut("\n".join(block), f"{path}#line={begin}" if text_format == "bert" else str(path))


def _text_of(
    row: dict[str, object], uri: str, text_field: str | None, size: int
) -> Iterator[RawDocument | Dropped]:
    field = text_field or next((name for name in TEXT_FIELDS if name in row), None)
    if field is None or field not in row:
        yield Dropped(uri, STAGE, "no_text_field", size)
    elif not isinstance(row[field], str):
        yield Dropped(uri, STAGE, "text_not_string", size)
    else:
        yield from _cut(row[field], uri)


def _read_jsonl(path: Path, lines: Iterator[str], text_field: str | None) -> Iterator[RawDocument | Dropped]:
    head = list(islice(lines, 1))
    if head and head[0].strip() in ("[", "[{"):  # a pretty-printed JSON array, whatever its name says
        yield from _read_json_array(path, "\n".join(chain(head, lines)), text_field)
        return
    for number, line in enumerate(chain(head, lines), 1):
        if not line.strip():
            continue
        uri = f"{path}#line={number}"
        if len(line) > MAX_ROW_CHARACTERS:
            yield Dropped(uri, STAGE, "row_too_long", len(line))
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            yield Dropped(uri, STAGE, "bad_json", len(line))
            continue
        # one line that is an array of objects: JSON written by a program
        items = row if isinstance(row, list) and any(isinstance(item, dict) for item in row) else [row]
        for item in items:
            yield from _from_object(item, uri, text_field, len(line))


def _read_json_array(path: Path, content: str, text_field: str | None) -> Iterator[RawDocument | Dropped]:
    try:
        items = json.loads(content)
    except (ValueError, RecursionError):
        yield Dropped(str(path), STAGE, "bad_json", len(content))
        return
    for number, item in enumerate(items, 1):
        yield from _from_object(item, f"{path}#item={number}", text_field, 0)


def _from_object(
    item: object, uri: str, text_field: str | None, size: int
) -> Iterator[RawDocument | Dropped]:
    if isinstance(item, dict):
        yield from _text_of(item, uri, text_field, size)
    else:
        yield Dropped(uri, STAGE, "not_an_object", size)


def _read_table(
    path: Path, lines: Iterator[str], delimiter: str, text_field: str | None
) -> Iterator[RawDocument | Dropped]:
    if delimiter == "\t":  # no quoting in TSV: a quotation mark is a character of the text
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader((f"{line}\n" for line in lines), strict=True)
    csv.field_size_limit(MAX_DOCUMENT_CHARACTERS * 4)
    header = next(rows, [])
    for number, row in enumerate(rows, 2):
        uri = f"{path}#row={number}"
        if len(row) == len(header):
            yield from _text_of(dict(zip(header, row, strict=True)), uri, text_field, sum(map(len, row)))
        elif row:
            yield Dropped(uri, STAGE, "wrong_number_of_columns", sum(map(len, row)))


def _read_parquet(path: Path, text_field: str | None) -> Iterator[RawDocument | Dropped]:
    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    field = text_field or next((name for name in TEXT_FIELDS if name in names), None)
    if field not in names:
        yield Dropped(str(path), STAGE, "no_text_field", 0)
        return
    number = 0
    for batch in file.iter_batches(batch_size=1024, columns=[field]):
        for text in batch.column(0).to_pylist():
            number += 1
            yield from _text_of({field: text}, f"{path}#row={number}", field, 0)
