"""Labelled sentences and pairs in tables with named columns: TSV, CSV, also Excel's, and JSON."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from albert.tasks.definition import Kind, Task
from albert.tasks.examples import Example, Found, read_json, read_json_lines, read_lines, suffix_of
from data.errors import InputError
from data.sources import delimiter_of

Role = Literal["text", "pair", "label"]  # of a column
Row = tuple[int, dict[str, Any] | str]  # its number in the file, and its values or its fault
Columns = Mapping[Role, Sequence[str]]  # usual names of the columns, the most frequent first
_USUAL: Columns = {
    "text": (
        "sentence1", "text_a", "text", "sentence", "query1", "question1", "question", "content", "review",
    ),
    "label": ("label", "labels", "gold", "target", "score", "is_duplicate"),
    "pair": ("sentence2", "text_b", "query2", "question2"),
}  # fmt: skip


def read_table(path: Path, task: Task, is_labelled: bool) -> tuple[Task, list[Found]]:
    """The task with its kind, and the examples.

    Raises InputError if the file is missing or empty, or lacks the task's columns.
    """
    header = task.header
    if not is_labelled and header is not None:
        first = next((row for _, row in _lines(path) if row), [])
        if len(first) == len(header) - 1:
            names = (task.columns.get("label"), *_USUAL["label"])
            label = next((one for one in names if one in header), None)
            task = replace(task, header=tuple(name for name in header if name != label))
    wanted: dict[Role, bool] = {"text": True, "label": is_labelled, "pair": task.kind is not Kind.SINGLE}
    roles = [role for role, is_wanted in wanted.items() if is_wanted]
    may_lack_pair = task.kind in (None, Kind.MULTILABEL, Kind.REGRESSION)
    rows, columns = open_table(path, task, roles, _USUAL, optional=("pair",) if may_lack_pair else ())
    if task.kind is None:
        task = replace(task, kind=Kind.PAIR if columns["pair"] else Kind.SINGLE)
    return task, [
        (f"{path}, row {number}", _example(row, columns, task, at, is_labelled))
        for at, (number, row) in enumerate(rows)
    ]


def open_table(
    path: Path, task: Task, roles: Sequence[Role], usual: Columns, *, optional: Sequence[Role] = ()
) -> tuple[list[Row], dict[Role, str | None]]:
    """The rows of a table, and the column of each role: as the task file names it, else the first usual name.

    Raises InputError if there is no row, or no column of a role that is not `optional`.
    """
    if suffix_of(path) in (".jsonl", ".json"):
        rows = list(json_rows(path))
    else:
        rows = list(_table_rows(path, task.header, [name for names in usual.values() for name in names]))
    names = dict.fromkeys(name for _, row in rows if isinstance(row, dict) for name in row)
    if not names:
        number, fault = next(((number, row) for number, row in rows if isinstance(row, str)), (0, ""))
        raise InputError(f"{path} holds no example" + (f"; row {number} is {fault}" if fault else ""))
    known, named, columns = ", ".join(map(str, names)), task.columns, {}
    for role in roles:
        if role in named and named[role] not in names:
            raise InputError(f"no column {named[role]!r} in {path}; its columns are {known}")
        column = named.get(role) or next((name for name in usual[role] if name in names), None)
        if column is None and role not in optional:
            raise InputError(
                f"no {role} column in {path} (columns: {known}): expected one of {', '.join(usual[role])}, "
                "or name it in a task file"
            )
        columns[role] = column
    return rows, columns


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of JSON lines, or of one JSON array."""
    first = next((line for line in read_lines(path) if line.strip()), "")
    content = read_json(path) if first.lstrip().startswith("[") else None
    rows = enumerate(content, 1) if isinstance(content, list) else read_json_lines(path)
    for number, row in rows:
        yield number, row if isinstance(row, dict) else "not a JSON object"


def _table_rows(path: Path, header: Sequence[str] | None, usual: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a TSV (without quoting) or CSV; of a row of another width, its fault.

    With `header`, the first row is data unless it is that or has a usual name: some copies have a header of
    their own.
    """
    rows = list(_lines(path))
    while rows and not rows[-1][1]:  # empty lines at the end are no rows
        rows.pop()
    first = next((at for at, (_, row) in enumerate(rows) if row), 0)
    names: Sequence[str] = [cell.strip() for cell in rows[first][1]] if rows else []
    if header is None or names == [*header] or any(cell in usual for cell in names):
        rows = rows[first + 1 :]
    else:
        names = header
    for number, row in rows:
        if not row:
            yield number, "an empty line"
        elif len(row) == len(names):
            yield number, dict(zip(names, row, strict=True))
        else:
            yield number, f"{len(row)} columns where the header has {len(names)}"


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    if suffix_of(path) != ".csv":
        lines = enumerate(read_lines(path), 1)
        yield from ((number, line.split("\t") if line else []) for number, line in lines)
        return
    mark = delimiter_of(next(read_lines(path), ""))
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True, delimiter=mark)
    try:
        yield from ((rows.line_num, row) for row in rows)
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: line {rows.line_num}: {error}") from None


def _example(
    row: dict[str, Any] | str,
    columns: Mapping[Role, str | None],
    task: Task,
    at: int,
    is_labelled: bool,
) -> Example | str:
    """The example of a row, or the row's fault."""
    if isinstance(row, str):
        return row
    if isinstance(target := row.get("target"), dict):
        marked = _with_marks(str(row.get("text")), target)
        if marked is None:
            return "a span of its target is not in the text"
        row = row | {"text": marked}
    values: dict[Role, str] = {}
    # of unlabelled rows one that every kind can encode; no prediction depends on it
    labels: tuple[str, ...] | None = None if is_labelled else ("0",)
    for role, name in columns.items():
        if name is None:
            continue
        value = row.get(name)
        if role == "label" and task.kind is Kind.MULTILABEL and isinstance(value, (str, int, list)):
            labels = _several(value, task.separator)
            continue
        if role != "label" and isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)  # keywords, as CLUE's own reader joins them
        if role == "label" and isinstance(value, bool):
            value = str(value).lower()  # as YAML and JSON write it
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
            return f"column {name!r} is {'missing' if value is None else 'empty or no text'}"
        values[role] = str(value)
    labels = (values["label"].strip(),) if labels is None else labels
    if is_labelled and (fault := _fault(labels, task)):
        return fault
    several = labels if task.kind is Kind.MULTILABEL else None
    label = task.separator.join(labels)
    group, own = cell_of(row, task.group), str(row.get("id", at))
    return Example(values["text"], values.get("pair"), label, group, own, several)


def cell_of(row: Mapping[str, object], column: str | None) -> str | None:
    """The value of a column as text; None without such a column, or a value."""
    value = row.get(column) if column is not None else None
    return None if value is None else str(value)


def _several(value: str | int | list[Any], separator: str) -> tuple[str, ...]:
    """The labels of a cell or of a list, each once."""
    parts = value if isinstance(value, list) else str(value).split(separator)
    return tuple(dict.fromkeys(part for one in parts if (part := str(one).strip())))


def _fault(labels: Sequence[str], task: Task) -> str | None:
    for label in labels:
        if task.kind in (Kind.REGRESSION, Kind.SIMILARITY) and not _is_number(label):
            return f"{label!r} is not a number"
        if task.labels is not None and label not in task.labels:
            return f"label {label!r} is not one of {', '.join(task.labels)}"
    return None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _with_marks(text: str, target: dict[str, Any]) -> str | None:
    """A text of CLUEWSC2020 with _noun_ and [pronoun] marked as by CLUE's baseline; None if it lacks one."""
    mentions: list[tuple[Any, Any, int]]
    mentions = [(target.get(f"span{n}_index"), target.get(f"span{n}_text"), n) for n in (1, 2)]
    for at, mention, _ in mentions:
        if not (
            isinstance(at, int) and isinstance(mention, str) and mention and text.startswith(mention, at)
        ):
            return None
    for at, mention, n in sorted(mentions, reverse=True):
        marked = f"_{mention}_" if n == 1 else f"[{mention}]"
        text = text[:at] + marked + text[at + len(mention) :]
    return text
