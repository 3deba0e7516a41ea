"""Read documents from any supported source: plain text, Markdown, reStructuredText, AsciiDoc, HTML, JSON and
JSONL, CSV and TSV, Parquet; compressed, in archives, or behind a URL.

Only single pages are read whole. Anything that cannot be used is yielded as `Dropped` with its place and
reason, never lost.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedReader, StringIO
from itertools import chain, islice
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import InputError, UserError, is_passing, masked
from data.files import sha256
from data.sources.archives import COMPRESSIONS, Part, damage, one_line, open_parts, plain_name, seekable
from data.sources.decoding import SAMPLE_BYTES, decoded_lines, detect_encoding
from data.sources.markup import asciidoc_text, html_text, markdown_text, mdx_text, rst_text
from data.sources.plain_text import find_format, join_wrapped
from data.sources.rows import BadRow, json_rows, table_rows, take_text, whole_lines
from data.sources.settings import SourceRules, TextFormat
from data.storage import base_name, check_hosts, expand, is_remote


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A decoded document as its source holds it."""

    text: str
    source_uri: str  # path or URL without credentials, then its place in the file: "laws.jsonl.gz#line=12"
    encoding: str | None = None  # detected encoding of its file; None: UTF-8
    text_format: TextFormat | None = None  # how it was read; None: as it is, from no plain text


@dataclass(frozen=True, slots=True)
class Dropped:
    """An item that could not be read: counted in the funnel, with a row in the view `documents`."""

    source_uri: str
    reason: str
    characters: int = 0
    fields: str = ""  # names of the columns or fields, where none of them is the one to read


Item = RawDocument | Dropped
Row = tuple[str, object, int]  # its place in the file, what it holds, and its characters


def document_id(text: str) -> str:
    """Hash a cleaned text into its stable id.

    >>> document_id("继续")
    '7c9691192f1b7340'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_SUFFIXES_OF = {
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "mdx": (".mdx",),
    "rst": (".rst",),
    "asciidoc": (".adoc", ".asciidoc"),
    "html": (".html", ".htm", ".xhtml"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet",),
}
SUFFIXES = {suffix: kind for kind, suffixes in _SUFFIXES_OF.items() for suffix in suffixes}
ARCHIVES = (".zip", ".tar")
ARTICLE = '<doc id="'  # begins an article in the files of WikiExtractor, which are named wiki_00 or joined
# the first of these that exists, unless one is named
TEXT_FIELDS = ("text", "content", "正文", "内容", "文本", "评论")
MAX_DOCUMENT_CHARACTERS = 1_000_000  # a longer document is cut into several
MAX_HELD_CHARACTERS = 4 * MAX_DOCUMENT_CHARACTERS  # held of a text file before it is cut
MAX_PAGE_CHARACTERS = 8 << 20  # a page of markup is parsed whole
_PAGES: dict[str, Callable[[str], str]] = {
    "markdown": markdown_text,
    "mdx": mdx_text,
    "rst": rst_text,
    "asciidoc": asciidoc_text,
    "html": html_text,
}


def file_kind(name: str) -> str | None:
    """Decide by a file's name how it is read; None if it is not supported."""
    name = plain_name(name).lower()
    if name.endswith(ARCHIVES):
        return "archive"
    if re.search(r"(?:^|/)wiki_\d+$", name):  # as WikiExtractor names its files of Wikipedia
        return "jsonl"
    return SUFFIXES.get(name[name.rfind(".") :])


def find_files(source: str, *, allow_loopback: bool = False) -> list[str]:
    """List the files that a file, a folder (searched through), a glob or a URL names, sorted by name.

    They include a folder's unsupported files, broken links, devices and the like: reading one yields the
    reason why it is not read. Raises InputError if there is nothing to read, or a URL leads to a link-local
    address, or unless `allow_loopback` to this machine.
    """
    check_hosts(source, allow_loopback)
    files = expand(source)
    if not any(file_kind(base_name(uri)) for uri in files):
        fault = "not a supported input" if len(files) == 1 else "holds no file that can be read"
        kinds, compressions, archives = (", ".join(names) for names in (SUFFIXES, COMPRESSIONS, ARCHIVES))
        supported = f"{kinds}, each also with {compressions}, and {archives} archives of them"
        raise InputError(f"{source}: {fault}; supported are {supported}")
    return files


def read_documents(
    uri: str, *, text_format: TextFormat = "auto", text_field: str | None = None
) -> Iterator[Item]:
    """Yield the documents of a source in order, and what cannot be read as `Dropped`."""
    uri, rules = str(uri), SourceRules(text_format=text_format, text_field=text_field)
    kind, place = file_kind(base_name(uri)), masked(uri)
    # a pipe or a device may never end
    if not is_remote(uri) and not os.path.isfile(uri):
        yield Dropped(place, "not_a_file")
        return
    if kind is None:
        yield Dropped(place, "not_supported")
        return
    items = (item for part in open_parts(uri) for item in _read_part(part, rules))
    try:
        yield from _at_least_one(items, place)
    except UserError:
        raise
    except Exception as error:  # of whatever library; the documents before it stay
        if is_passing(error) and (is_remote(uri) or _has_digest(uri)):
            raise OSError(error.errno, error.strerror, place) from None
        yield Dropped(f"{place}#{one_line(error)}", "unreadable_file")


def _has_digest(path: str) -> bool:
    """Whether a file can be read at all. Without a digest it is read again by the next refresh."""
    with suppress(OSError):
        return bool(sha256(Path(path)))
    return False


def _at_least_one(items: Iterator[Item], uri: str) -> Iterator[Item]:
    """Yield the items, or what holds none, such as a table without rows or an archive without files."""
    yield next(items, Dropped(uri, "empty_file"))
    yield from items


def _read_part(part: Part, rules: SourceRules) -> Iterator[Item]:
    kind = file_kind(part.name)
    if part.file is None or kind is None or kind == "archive":
        yield Dropped(part.uri, part.refused or "not_supported")
        return
    try:
        if kind == "parquet":
            with seekable(part.file) as file:  # it is read from the end
                yield from _at_least_one(_read_parquet(part.uri, file, rules), part.uri)
            return
        encoding = _encoding(part.file)
        if encoding is not None:
            known = None if encoding in ("utf-8", "utf-8-sig") else encoding
            items = _read_lines(part, kind, decoded_lines(part.file, encoding), rules)
            for item in _at_least_one(items, part.uri):
                yield replace(item, encoding=known) if known and isinstance(item, RawDocument) else item
        elif not damage(part.file):
            yield Dropped(part.uri, "not_text" if part.file.peek(1) else "empty_file")
        if error := damage(part.file):
            yield Dropped(f"{part.uri}#{one_line(error)}", "unreadable_file")
    except UserError:
        raise
    except Exception as error:
        if is_passing(error):
            raise
        yield Dropped(f"{part.uri}#{one_line(error)}", "unreadable_file")


def _encoding(file: BufferedReader) -> str | None:
    sample = file.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
    return detect_encoding(sample, whole=len(sample) < SAMPLE_BYTES // 2) if sample else None


def _read_lines(part: Part, kind: str, lines: Iterator[str], rules: SourceRules) -> Iterator[Item]:
    first = list(islice(lines, 1))
    lines = chain(first, lines)
    if kind in ("text", "jsonl") and "".join(first).startswith(ARTICLE):
        return _blocks(part, lines, lambda line: line.startswith((ARTICLE, "</doc>")))
    if kind == "text":
        return _read_text(part, lines, rules.text_format)
    if kind in _PAGES:
        return _read_page(part.uri, lines, rules, _PAGES[kind])
    rows = json_rows(lines) if kind == "jsonl" else _by_column(table_rows(lines, kind))
    return _from_rows(part.uri, rows, rules)


def read_text_rows(uri: str) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each row of an evaluation file: of a table or JSON object, each field that is text.

    Raises ValueError for a row that cannot be read, and an error of the library for a damaged file.
    """
    for part in open_parts(str(uri)):
        kind = file_kind(part.name)
        if part.refused:
            raise OSError(f"{part.uri}: {part.refused}")
        if part.file and kind == "parquet":
            with seekable(part.file) as file:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
                    rows = zip(*map(_values_of, batch.columns), strict=True)
                    yield from (tuple(_texts_in(list(row))) for row in rows)
        elif part.file and kind in ("jsonl", "csv", "tsv"):
            yield from _text_rows(part.file, kind)
        else:
            for item in _read_part(part, SourceRules(text_format="bert")):
                if isinstance(item, RawDocument):
                    yield from (tuple(line.split("\t")) for line in item.text.split("\n"))
                elif item.reason not in ("empty_file", "not_supported"):
                    raise OSError(f"{item.source_uri}: {item.reason}")


def _text_rows(file: BufferedReader, kind: str) -> Iterator[tuple[str, ...]]:
    if encoding := _encoding(file):
        lines = decoded_lines(file, encoding)
        rows: Iterator[Row] = json_rows(lines) if kind == "jsonl" else table_rows(lines, kind)
        for number, (place, row, _) in enumerate(one for one in rows if one[1]):  # without blank lines
            if isinstance(row, BadRow):
                raise ValueError(f"{place}: {row.reason}")
            # a table's first row may be names of columns
            is_head = number == 0 and kind != "jsonl"
            yield tuple(
                text for text in _texts_in(row) if not (is_head and text.isidentifier() and text.isascii())
            )
    elif file.peek(1):
        raise OSError("not_text")
    if error := damage(file):
        raise error


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _cut(text: str, uri: str, first: int = 1, text_format: TextFormat | None = None) -> Iterator[RawDocument]:
    """Yield a document, in parts that end at a line or sentence end if it is too long.

    `first`: the number of the first part; above 1 if parts of the document were yielded before.
    """
    if len(text) <= MAX_DOCUMENT_CHARACTERS and first == 1:
        yield RawDocument(text, uri, text_format=text_format)
        return
    begin, part = 0, first
    while begin < len(text):
        end = min(begin + MAX_DOCUMENT_CHARACTERS, len(text))
        if end < len(text):
            ends = [text.rfind(mark, begin + MAX_DOCUMENT_CHARACTERS // 2, end) for mark in "\n。！？"]
            end = max(ends) + 1 if max(ends) > 0 else end
        yield RawDocument(text[begin:end], f"{uri}#part={part}", text_format=text_format)
        begin, part = end, part + 1


def _read_text(part: Part, lines: Iterator[str], text_format: TextFormat) -> Iterator[Item]:
    if text_format == "auto":
        head, _ = take_text("", islice(lines, 2000), MAX_HELD_CHARACTERS + 1)
        text_format = "bert" if ".bert." in part.name else find_format(head.split("\n"))
        lines = chain(StringIO(head), lines)
    if text_format == "lines":
        yield from _read_each_line(part.uri, lines)
        return
    ends = str.isspace if text_format == "bert" else None
    for document in _blocks(part, lines, ends):
        text = join_wrapped(document.text) if text_format == "wrapped" else document.text
        yield replace(document, text=text, text_format=text_format)


def _read_each_line(uri: str, lines: Iterator[str]) -> Iterator[Item]:
    for number, line in enumerate(whole_lines(lines), 1):
        if isinstance(line, int):
            yield Dropped(f"{uri}#line={number}", "row_too_long", line)
        elif line.strip():
            yield from _cut(line, f"{uri}#line={number}", text_format="lines")


def _blocks(part: Part, lines: Iterator[str], ends: Callable[[str], bool] | None) -> Iterator[RawDocument]:
    """Yield the documents between the lines that end one, which are not part of it."""
    block: list[str] = []
    # number: this line; begin, first: the block's first line and part
    size, number, begin, first = 0, 1, 1, 1
    in_line = False

    def cut() -> Iterator[RawDocument]:
        place = f"#line={begin}" if ends or begin > 1 else ""
        return _cut("".join(block).removesuffix("\n"), f"{part.uri}{place}", first)

    for line in lines:
        is_cut = not line.endswith("\n")
        ends_document = ends is not None and not in_line and not is_cut and ends(line)
        if in_line and size > MAX_HELD_CHARACTERS:
            # the last part may still grow
            *parts, rest = cut()
            yield from parts
            block, size, first = [rest.text], len(rest.text), first + len(parts)
        elif ends_document or size > MAX_HELD_CHARACTERS:
            if not all(map(str.isspace, block)):
                yield from cut()
            block, size, begin, first = [], 0, number + ends_document, 1
        if not ends_document:
            block.append(line)
            size += len(line) - (not is_cut)
        number += not is_cut
        in_line = is_cut
    if not all(map(str.isspace, block)):
        yield from cut()


def _read_page(
    uri: str, lines: Iterator[str], rules: SourceRules, text_of: Callable[[str], str]
) -> Iterator[Item]:
    page, is_whole = take_text("", lines, MAX_PAGE_CHARACTERS + 1)
    if not is_whole:
        yield Dropped(uri, "page_too_long", len(page))
        return
    text, found = _unwrapped(text_of(page.removesuffix("\n")), rules)
    yield from _cut(text.replace("\n\n", "\n"), uri, text_format=found)


def _unwrapped(text: str, rules: SourceRules) -> tuple[str, TextFormat | None]:
    """Join the lines of a row or a page if they were wrapped; return also "wrapped" if so."""
    joined = join_wrapped(text) if rules.text_format in ("auto", "wrapped") else text
    return joined, None if joined is text else "wrapped"


def _from_rows(uri: str, rows: Iterable[Row], rules: SourceRules) -> Iterator[Item]:
    """Yield documents. Unless the rules name fields, the first row with one of TEXT_FIELDS decides."""
    fields = _named_fields(rules)
    for place, row, size in rows:
        row_uri = f"{uri}#{place}"
        if not fields and isinstance(row, dict):
            fields = [name for name in TEXT_FIELDS if name in row][:1]
        if isinstance(row, BadRow):
            yield Dropped(row_uri, row.reason, row.characters)
        elif not isinstance(row, dict):
            yield Dropped(row_uri, "not_an_object", size)
        elif not fields or not row.keys() >= set(fields):
            yield Dropped(row_uri, "no_text_field", size, ", ".join(row))
        elif not (texts := _texts_of([row[name] for name in fields])):
            yield Dropped(row_uri, "text_not_string", size)
        else:
            # separately: a title longer than wrapped lines would hide that they are wrapped
            pieces = [_unwrapped(text, rules) for text in texts]
            found = next((found for _, found in pieces if found), None)
            yield from _cut("\n".join([text for text, _ in pieces if text]), row_uri, text_format=found)


def _named_fields(rules: SourceRules) -> list[str]:
    return [name.strip() for name in rules.text_field.split(",")] if rules.text_field else []


def _texts_of(values: list[object]) -> list[str]:
    """Return the texts among values, of which some may be null; none if one is anything else."""
    joined = [_joined(value) for value in values]
    texts = [value for value in joined if isinstance(value, str)]
    return texts if len(texts) + joined.count(None) == len(values) else []


def _joined(value: object) -> object:
    """Return a list of texts as one, a line or more each; objects in it give the first of their TEXT_FIELDS.
    Anything else is returned as it is.
    """
    if not isinstance(value, list):
        return value
    items = [
        next((item[name] for name in TEXT_FIELDS if name in item), None) if isinstance(item, dict) else item
        for item in value
    ]
    texts = [item for item in items if isinstance(item, str)]
    return "\n".join(texts) if texts and len(texts) == len(items) else value


def _by_column(rows: Iterator[tuple[str, list[str] | BadRow, int]]) -> Iterator[Row]:
    """Yield rows of a table below its header as objects; blank ones are left out."""
    header: list[str] = []
    for place, row, size in rows:
        if isinstance(row, BadRow):
            yield place, row, size
        elif not header:  # a blank line may stand first
            header = [name.strip() for name in row]
        elif row and len(row) == len(header):
            yield place, dict(zip(header, row, strict=True)), size
        elif row:
            yield place, BadRow("wrong_number_of_columns", size), size


def _read_parquet(uri: str, source: IO[bytes], rules: SourceRules) -> Iterator[Item]:
    file = pq.ParquetFile(source)
    names = file.schema_arrow.names
    fields = _named_fields(rules) or [name for name in TEXT_FIELDS if name in names][:1]
    if not fields or not set(names) >= set(fields):
        yield Dropped(uri, "no_text_field", fields=", ".join(names))
        return
    batches = file.iter_batches(batch_size=1024, columns=fields)
    columns = ([_values_of(batch.column(name)) for name in fields] for batch in batches)
    values = chain.from_iterable(zip(*of_batch, strict=True) for of_batch in columns)
    rows = ((f"row={n}", dict(zip(fields, row, strict=True)), 0) for n, row in enumerate(values, 1))
    yield from _from_rows(uri, rows, rules)


def _values_of(column: pa.Array) -> list[object]:
    """Return a column's values; bytes in UTF-8 are text, which Spark and Hive may not mark as such."""
    try:
        return [_decoded(value) for value in column.to_pylist()]
    except UnicodeDecodeError:  # a writer of Parquet need not check its texts
        values = column.cast(pa.binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in values]


def _decoded(value: object) -> object:
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value
