"""Read the rows of text files: JSON values, one a line or not, and rows of CSV and TSV tables.

Anything else is yielded as a `BadRow` in its place; reading continues with the next line that begins a row.
"""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

MAX_ROW_CHARACTERS = 32 << 20
MAX_FIELD_CHARACTERS = 4_000_000  # a longer CSV field has a quote that was never closed
_WINDOW = 1 << 16  # characters of JSON held at once, unless one value is longer
_FAR = 4096  # characters into the held text; beyond, counting the lines for an error's message is slow
_next_value = re.compile(r"(?:^[ \t,\[]*|[}\"]\s*,\s*)(?=\{)", re.M)
_named_mark = re.compile(r'(?i)sep=([^\w\s"]|\t)\n')  # a first line that tells Excel the mark between columns
_decoder = json.JSONDecoder(parse_int=float)  # int() refuses more than 4,300 digits
# around values and arrays of objects; where files were joined, byte-order marks too
_marks = re.compile(r"(?:[\s,\]\ufeff]|\[(?=\s*(?:\{|$)))*")


class BadRow(NamedTuple):
    """Text found in place of a row."""

    reason: str
    characters: int


def whole_lines(lines: Iterator[str]) -> Iterator[str | int]:
    """Join lines from their pieces and leave out their ends; of a line above MAX_ROW_CHARACTERS yield only
    the length.
    """
    pieces: list[str] = []
    size = 0
    for piece in lines:
        line = piece.removesuffix("\n")
        size += len(line)
        pieces = [*pieces, line] if size <= MAX_ROW_CHARACTERS else []
        if piece.endswith("\n"):
            yield "".join(pieces) if size <= MAX_ROW_CHARACTERS else size
            pieces, size = [], 0
    if size:
        yield "".join(pieces) or size


def json_rows(lines: Iterator[str]) -> Iterator[tuple[str, object, int]]:
    """Yield each value of a file with its place and its line's length; a `BadRow` for anything but JSON.

    The place is "line=3", or "item=3" if values span lines; then, and if it shares a line, the length is 0.
    """
    number, first = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (1, ""))
    if _begins_value(first):
        for at, value in enumerate(_values(chain([first], lines)), 1):
            yield f"item={at}", value, 0
        return
    for at, line in enumerate(whole_lines(chain([first], lines)), number):
        if isinstance(line, int):
            yield f"line={at}", BadRow("row_too_long", line), line
        elif line.strip():
            try:
                value = _decoder.decode(line.removeprefix("\ufeff"))
            except (ValueError, RecursionError):
                value = BadRow("bad_json", len(line))
            # a program may write an array of objects on one line
            is_array = isinstance(value, list) and any(isinstance(item, dict) for item in value)
            for item in value if is_array else [value]:
                yield f"line={at}", item, 0 if is_array else len(line)


def _begins_value(line: str) -> bool:
    """Whether values that span or share lines begin here: no row of JSONL looks like this."""
    text = line.strip()
    is_array = text[:1] == "[" and text[1:].lstrip()[:1] in ("{", "")
    try:
        _decoder.decode(text)
    except json.JSONDecodeError as error:
        # JSON so far, and perhaps the next value
        return is_array or text[error.pos :].lstrip(", \t")[:1] in ("{", "")
    except RecursionError:
        pass
    return False


def take_text(text: str, lines: Iterator[str], enough: int) -> tuple[str, bool]:
    """Add lines to the text until it has `enough` characters; return it and whether the lines are used up."""
    block, size = [text], len(text)
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= enough:
            return "".join(block), False
    return "".join(block), True


def _values(lines: Iterator[str]) -> Iterator[object]:
    """Yield the values of a JSON array of objects, or of a sequence of values, while reading."""
    text, is_over, enough = "", False, _WINDOW
    lost = 0  # characters so far of a bad value whose end was not found yet
    while not is_over:
        text, is_over = take_text(text, lines, enough)
        at = 0
        while (at := _marks.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            if not lost:
                try:
                    value, at = _decoder.raw_decode(text, at)
                    yield value
                    continue
                except (ValueError, RecursionError) as error:
                    is_long = len(text) - at > MAX_ROW_CHARACTERS
                    if not is_over and not is_long and _is_cut(error, text):
                        break
                    reason = "row_too_long" if is_long else "bad_json"
                    if at > _FAR:
                        text, at = text[at:], 0
            following = _next_value.search(text, at + (not lost))
            end = following.end() if following else len(text)
            lost += end - at
            at = end
            if following or is_over:
                yield BadRow(reason, lost)
                lost = 0
        text = text[at:]
        # a value longer than the held text is tried again when twice as much is there
        enough = max(_WINDOW, 2 * len(text))
    if lost:
        yield BadRow(reason, lost)


def _is_cut(error: Exception, text: str) -> bool:
    """Whether a value failed to parse only because its end is not there yet."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    # a literal or an escape may be cut too
    return error.msg.startswith("Unterminated string") or not text[error.pos + 8 : error.pos + 72].strip()


def table_rows(lines: Iterator[str], kind: str) -> Iterator[tuple[str, list[str] | BadRow, int]]:
    """Yield each row of a "csv" or "tsv" file, the header first, with its place and its characters.

    A blank row is an empty list. TSV has no quoting: a quotation mark is a character of the text.
    """
    for number, row in enumerate(_tsv_rows(lines) if kind == "tsv" else _csv_rows(lines), 1):
        yield f"row={number}", row, row.characters if isinstance(row, BadRow) else sum(map(len, row))


def _tsv_rows(lines: Iterator[str]) -> Iterator[list[str] | BadRow]:
    for line in whole_lines(lines):
        if isinstance(line, int):
            yield BadRow("row_too_long", line)
        else:
            yield line.split("\t") if line else []


def _csv_rows(lines: Iterator[str]) -> Iterator[list[str] | BadRow]:
    """Yield rows; of a bad one only the first line is lost: the others are read again."""
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    first = next(lines, "")
    if named := _named_mark.fullmatch(first):
        yield []
        first = next(lines, "")
    # in some countries Excel writes semicolons or tabs, not commas
    mark = named[1] if named else max(",;\t", key=first.count)
    # people write a space behind it, also before a quotation mark
    parse = partial(csv.reader, strict=True, delimiter=mark, skipinitialspace=f"{mark} " in first)
    source = whole_lines(chain([first], lines))
    taken: list[str] = []  # since the row began
    again: deque[str | int] = deque()

    def take() -> Iterator[str]:
        while (line := again.popleft() if again else next(source, None)) is not None:
            if isinstance(line, int):
                again.appendleft(line)
                return
            taken.append(line)
            yield f"{line}\n"

    rows = parse(take())
    while True:
        taken.clear()
        try:
            yield next(rows)
            continue
        except StopIteration:
            if not again:
                return
            yield BadRow("row_too_long", int(again.popleft()))
        except csv.Error:
            yield BadRow("bad_csv", len(taken[0]))
            again.extendleft(reversed(taken[1:]))
        rows = parse(take())
