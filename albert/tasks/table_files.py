"""Rows of tables with named columns: TSV, CSV as Excel saves it too, and JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from albert.tasks.examples import read_json_lines, read_lines, suffix_of
from data.errors import InputError

Role = Literal["text", "pair", "label"]  # of a column
Row = tuple[int, dict[str, object] | str]  # its number in the file, and its values or its fault


def is_json_lines(path: Path) -> bool:
    """Whether a table has a JSON object a line."""
    return suffix_of(path) in (".jsonl", ".json")


def table_rows(path: Path, header: Sequence[str] | None, usual: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a TSV (without quoting) or CSV; of a row of another width, its fault.

    With `header`, the first row is data unless it has a usual name: some copies have a header of their own.
    """
    rows = _cells(path)
    number, first = next(rows, (1, []))
    own = header is None or any(cell.strip() in usual for cell in first)
    names = list(first) if own or header is None else list(header)
    if not own:
        yield _row(number, first, names)
    for number, row in rows:
        yield _row(number, row, names)


def width_of(path: Path) -> int:
    """The number of columns of the first row."""
    return len(next(_cells(path), (1, []))[1])


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of JSON lines."""
    for number, row in read_json_lines(path):
        yield number, row if isinstance(row, dict) else "not a JSON object"


def find_column(
    path: Path,
    names: Sequence[str],
    role: str,
    named: str | None,
    usual: Sequence[str],
    *,
    required: bool = True,
) -> str | None:
    """The column of a role: as the task file names it, else the first usual name. Raises InputError if it is
    not there.
    """
    known = ", ".join(map(str, names))
    if named is not None:
        if named not in names:
            raise InputError(f"no column {named!r} in {path}; its columns are {known}")
        return named
    found = next((name for name in usual if name in names), None)
    if found is None and required:
        raise InputError(
            f"no {role} column in {path} (columns: {known}): expected one of {', '.join(usual)}, or name it "
            "in a task file"
        )
    return found


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    if suffix_of(path) == ".csv":
        yield from _csv_cells(path)
        return
    for number, line in enumerate(read_lines(path), 1):
        if line:
            yield number, line.split("\t")


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV, whose first line shows whether Excel has put semicolons or tabs in place of commas."""
    first = next(read_lines(path), "")
    rows = csv.reader(
        (line + "\n" for line in read_lines(path)), strict=True, delimiter=max(",;\t", key=first.count)
    )
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: line {rows.line_num}: {error}") from None


def _row(number: int, row: list[str], names: list[str]) -> Row:
    if len(row) != len(names):
        return number, f"{len(row)} columns where the header has {len(names)}"
    return number, dict(zip(names, row, strict=True))
