"""Labelled sentences and pairs in tables with named columns: TSV, CSV, also Excel's, JSON and Parquet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from albert.tasks.definition import Kind, Task
from albert.tasks.examples import (
    Example,
    Found,
    read_json,
    read_json_lines,
    read_lines,
    read_parquet,
    suffix_of,
)
from data.errors import InputError
from data.sources import BadRow, table_rows

Role = Literal["text", "pair", "label"]  # of a column
OBJECTS = (".jsonl", ".json", ".parquet")  # suffixes of files whose rows name their columns
Row = tuple[int, dict[str, Any] | str]  # its number in the file, and its values or its fault
Columns = Mapping[Role, Sequence[str]]  # usual names of the columns, the most frequent first
_USUAL: Columns = {
    "text": (
        "sentence1", "text_a", "text", "text1", "sentence", "query1", "question1", "question", "content",
        "review", "文本", "正文", "内容", "评论",
    ),
    "label": ("label", "labels", "gold", "target", "score", "is_duplicate", "标签", "类别"),
    "pair": ("sentence2", "text_b", "text2", "query2", "question2"),
}  # fmt: skip


def read_table(path: Path, task: Task, is_labelled: bool) -> tuple[Task, list[Found]]:
    """The task with its kind, and the examples.

    Raises InputError if the file is missing or empty, or lacks the task's columns.
    """
    header = task.header
    if not is_labelled and (header is not None or suffix_of(path) == ".txt"):
        first = next((row for _, row in _lines(path) if row and not isinstance(row, str)), [])
        if header is None and len(first) == 1:  # a text a line
            task = replace(task, header=(task.columns.get("text", "text"),))
        elif header is not None and len(first) == len(header) - 1:
            names = (task.columns.get("label"), *_USUAL["label"])
            label = next((one for one in names if one in header), None)
            task = replace(task, header=tuple(name for name in header if name != label))
    needed: dict[Role, bool] = {"text": True}
    if is_labelled:
        needed["label"] = True
    if task.kind is not Kind.SINGLE:
        needed["pair"] = task.kind not in (None, Kind.MULTILABEL, Kind.REGRESSION)
    rows, columns = open_table(path, task, needed, _USUAL)
    if task.kind is None:
        task = replace(task, kind=Kind.PAIR if "pair" in columns else Kind.SINGLE)
    return task, [
        (f"{path}, row {row[0]}", partial(_example, row, columns, task, at, is_labelled))
        for at, row in enumerate(rows)
    ]


def open_table(
    path: Path, task: Task, needed: Mapping[Role, bool], usual: Columns
) -> tuple[list[Row], dict[Role, str]]:
    """The rows of a table, and the column of each role: as the task file names it, else the first usual name.

    Raises InputError if there is no row, or no column of a role that is needed.
    """
    if suffix_of(path) in OBJECTS:
        rows = list(object_rows(path, task.labels))
    else:
        rows = list(_table_rows(path, task, [name for names in usual.values() for name in names]))
    names = dict.fromkeys(name for _, row in rows if isinstance(row, dict) for name in row)
    if not names:
        number, fault = next(((number, row) for number, row in rows if isinstance(row, str)), (0, ""))
        raise InputError(f"{path} holds no example" + (f"; row {number} is {fault}" if fault else ""))
    known, named, columns = ", ".join(map(str, names)), task.columns, {}
    for role, is_needed in needed.items():
        if role in named and named[role] not in names:
            raise InputError(f"no column {named[role]!r} in {path}; its columns are {known}")
        if column := named.get(role) or next((name for name in usual[role] if name in names), None):
            columns[role] = column
        elif is_needed:
            raise InputError(
                f"no {role} column in {path} (columns: {known}): expected one of {', '.join(usual[role])}, "
                "or name it in a task file"
            )
    return rows, columns


def object_rows(path: Path, labels: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of JSON lines, of one JSON array, or of Parquet, whose labels may be `labels`."""
    if suffix_of(path) == ".parquet":
        yield from enumerate(read_parquet(path, labels), 1)
        return
    first = next((line for line in read_lines(path) if line.strip()), "")
    content = read_json(path) if first.lstrip().startswith("[") else None
    rows = enumerate(content, 1) if isinstance(content, list) else read_json_lines(path)
    for number, row in rows:
        yield number, row if isinstance(row, dict) else "not a JSON object"


def _table_rows(path: Path, task: Task, usual: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a TSV (without quoting) or CSV; of a row of another width, its fault.

    With a header of the task, the first row is data unless it is that or has a usual name: some copies have a
    header of their own. Raises InputError if two columns have one name that counts.
    """
    rows, header = list(_lines(path)), task.header
    while rows and not rows[-1][1]:  # empty lines at the end are no rows
        rows.pop()
    first = next((at for at, (_, row) in enumerate(rows) if row and not isinstance(row, str)), 0)
    names: Sequence[str] = [cell.strip() for cell in rows[first][1]] if rows else []
    if header is None or names == [*header] or any(cell in usual for cell in names):
        rows = rows[first + 1 :]
    else:
        names = header
    for name in (*usual, *task.columns.values()):
        if names.count(name) > 1:
            raise InputError(f"{path} has several columns {name!r}: rename all but one")
    for number, row in rows:
        if isinstance(row, str):
            yield number, row
        elif len(row) == len(names):
            yield number, dict(zip(names, row, strict=True))
        else:
            yield number, f"{len(row)} columns where the header has {len(names)}"


def _lines(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the number and the cells of each row, or its fault."""
    lines = (f"{line}\n" for line in read_lines(path))
    kind = "csv" if suffix_of(path) == ".csv" else "tsv"
    for number, (_, row, _) in enumerate(table_rows(lines, kind), 1):
        yield number, "not CSV, by its quotes or line ends" if isinstance(row, BadRow) else row


def values_of(row: Row) -> dict[str, Any]:
    """The values of a row. Raises ValueError with its fault."""
    _, values = row
    if isinstance(values, str):
        raise ValueError(values)
    return values


def _example(row: Row, columns: Mapping[Role, str], task: Task, at: int, is_labelled: bool) -> Example:
    values = values_of(row)
    if isinstance(target := values.get("target"), dict):
        values = values | {"text": _with_marks(values["text"], target)}
    text = _text(values, columns["text"])
    pair = _text(values, columns["pair"]) if "pair" in columns else None
    # of unlabelled rows one that every kind can encode; no prediction depends on it
    labels = _labels(values, columns["label"], task) if is_labelled else ("0",)
    several = labels if task.kind is Kind.MULTILABEL else None
    own = cell_of(values, "id") or str(at)
    return Example(text, pair, task.separator.join(labels), cell_of(values, task.group), own, several)


def _text(row: Mapping[str, Any], column: str) -> str:
    """The text of a cell. Raises ValueError if there is none."""
    value = row.get(column)
    if isinstance(value, list):
        value = " ".join(value)  # keywords, as CLUE's own reader joins them
    if not isinstance(value, (str, int, float)) or not str(value).strip():
        raise ValueError(f"column {column!r} is {'missing' if value is None else 'empty or no text'}")
    return str(value).lower() if isinstance(value, bool) else str(value)  # as YAML and JSON write it


def _labels(row: Mapping[str, Any], column: str, task: Task) -> tuple[str, ...]:
    """The labels of a row, each once; only of multilabel there may be none, or several, also in a list."""
    cell, labels = row.get(column), tuple[str, ...]()
    if task.kind is Kind.MULTILABEL and isinstance(cell, (str, int, list)):
        parts = cell if isinstance(cell, list) else str(cell).split(task.separator)
        named = (str(one).strip() for one in parts if one is not None)
        labels = tuple(dict.fromkeys(filter(None, named)))
    elif isinstance(cell, list):
        raise ValueError(f"column {column!r} is a list: only multilabel tasks have several")
    else:
        labels = (_text(row, column).strip(),)
    for label in labels:
        if task.kind in (Kind.REGRESSION, Kind.SIMILARITY) and not math.isfinite(float(label)):
            raise ValueError(f"{label!r} is not a number")
        if task.labels is not None and label not in task.labels:
            raise ValueError(f"label {label!r} is not one of {', '.join(task.labels)}")
    return labels


def cell_of(row: Mapping[str, object], column: str | None) -> str | None:
    """The value of a column as text; None without such a column, or where it is empty."""
    value = row.get(column) if column is not None else None
    return None if value in (None, "") else str(value)


def _with_marks(text: str, target: Mapping[str, Any]) -> str:
    """A text of CLUEWSC2020 with _noun_ and [pronoun] marked as by CLUE's baseline."""
    spans = [(target[f"span{n}_index"], target[f"span{n}_text"], n) for n in (1, 2)]
    for at, mention, n in sorted(spans, reverse=True):
        if not text.startswith(mention, at):
            raise ValueError("a span of its target is not in the text")
        marked = f"_{mention}_" if n == 1 else f"[{mention}]"
        text = text[:at] + marked + text[at + len(mention) :]
    return text
