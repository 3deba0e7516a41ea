"""Sentences and sentence pairs with a label or a number, from TSV, CSV or JSONL files."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from albert.tasks.definition import Kind, Task
from albert.tasks.examples import Example, read_json_lines, read_lines, suffix_of
from data.errors import InputError

Role = Literal["text", "pair", "label"]
# usual names of the columns, the most frequent first
USUAL: dict[Role, tuple[str, ...]] = {
    "text": (
        "sentence1", "text_a", "text", "sentence", "query1", "question1", "question", "content", "review",
    ),
    "pair": ("sentence2", "text_b", "query2", "question2"),
    "label": ("label", "labels", "gold", "target", "score", "is_duplicate"),
}  # fmt: skip
Row = tuple[int, dict[str, object] | str]  # its number in the file, and its values or its fault


def read_table(
    path: Path, task: Task, placeholder: str | None = None
) -> tuple[Task, list[Example], list[str]]:
    """The task with its kind, the examples, and the rows that could not be used. A placeholder stands for the
    label of every row, and the file needs none.

    Raises InputError if the file is missing or empty, or lacks the task's columns.
    """
    is_lines = suffix_of(path) in (".jsonl", ".json")
    header = task.header
    if placeholder is not None and header is not None and _width(path) == len(header) - 1:
        names = (task.columns.get("label"), *USUAL["label"])
        header = tuple(name for name in header if name != next(one for one in names if one in header))
    rows = list(_jsonl_rows(path) if is_lines else _table_rows(path, header))
    first = next((row for _, row in rows if isinstance(row, dict)), None)
    if first is None:
        raise InputError(f"{path} holds no example")
    roles: tuple[Role, ...] = ("text", "label") if task.kind is Kind.SINGLE else ("text", "label", "pair")
    roles = tuple(role for role in roles if role != "label" or placeholder is None)
    columns = {role: _column(path, list(first), task, role) for role in roles}
    if task.group is not None and task.group not in first and placeholder is None:
        raise InputError(f"no column {task.group!r} in {path}; its columns are {', '.join(first)}")
    if task.kind is None:
        task = replace(task, kind=Kind.PAIR if columns["pair"] else Kind.SINGLE)
    examples, skipped = [], []
    for at, (number, row) in enumerate(rows):
        example = row if isinstance(row, str) else _example(row, columns, task, str(at), placeholder)
        if isinstance(example, str):
            skipped.append(f"{path}, row {number}: {example}")
        else:
            examples.append(example)
    return task, examples, skipped


def _column(path: Path, names: list[str], task: Task, role: Role) -> str | None:
    known = ", ".join(map(str, names))
    named = task.columns.get(role)
    if named is not None:
        if named not in names:
            raise InputError(f"no column {named!r} in {path}; its columns are {known}")
        return named
    usual = next((name for name in USUAL[role] if name in names), None)
    if usual is None and (role != "pair" or task.kind is not None):
        raise InputError(
            f"no {role} column in {path} (columns: {known}): expected one of {', '.join(USUAL[role])}, or "
            "name it in a task file"
        )
    return usual


def _example(
    row: dict[str, object], columns: dict[Role, str | None], task: Task, number: str, label: str | None
) -> Example | str:
    """The example of a row, or the row's fault."""
    values: dict[str, str] = {}
    for role, name in columns.items():
        if name is None:
            continue
        value = row.get(name)
        if role != "label" and isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)  # keywords, as CLUE's own reader joins them
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
            return f"column {name!r} is {'missing' if value is None else 'empty or no text'}"
        values[role] = str(value)
    group, own = None if task.group is None else str(row.get(task.group)), str(row.get("id", number))
    if label is not None:
        return Example(values["text"], values.get("pair"), label, group, own)
    label = values["label"].strip()
    if task.kind in (Kind.REGRESSION, Kind.SIMILARITY) and not _is_number(label):
        return f"{label!r} is not a number"
    if task.labels is not None and label not in task.labels:
        return f"label {label!r} is not one of {', '.join(task.labels)}"
    return Example(values["text"], values.get("pair"), label, group, own)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _table_rows(path: Path, header: Sequence[str] | None) -> Iterator[Row]:
    """Yield the rows of a TSV (without quoting) or CSV; of a row of another width, its fault.

    With `header`, the first row is data unless it names a column: some copies have a header of their own.
    """
    rows = _csv_rows(path) if suffix_of(path) == ".csv" else _tsv_rows(path)
    number, first = next(rows, (1, []))
    names = list(first) if header is None or _names_columns(first) else list(header)
    if names != first:
        yield _row(number, first, names)
    for number, row in rows:
        yield _row(number, row, names)


def _width(path: Path) -> int:
    """The number of columns of the first row."""
    rows = _csv_rows(path) if suffix_of(path) == ".csv" else _tsv_rows(path)
    return len(next(rows, (1, []))[1])


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_lines(path), 1):
        if line:
            yield number, line.split("\t")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: line {rows.line_num}: {error}") from None


def _names_columns(row: Sequence[str]) -> bool:
    return any(cell.strip() in usual for usual in USUAL.values() for cell in row)


def _row(number: int, row: list[str], names: list[str]) -> Row:
    if len(row) != len(names):
        return number, f"{len(row)} columns where the header has {len(names)}"
    return number, dict(zip(names, row, strict=True))


def _jsonl_rows(path: Path) -> Iterator[Row]:
    for number, row in read_json_lines(path):
        if not isinstance(row, dict):
            yield number, "not a JSON object"
        else:
            target = row.get("target")
            yield number, _marked(row, target) if isinstance(target, dict) else row


def _marked(row: dict[str, object], target: Any) -> dict[str, object] | str:
    """A row of CLUEWSC2020 with _noun_ and [pronoun] marked as CLUE's baseline marks them, or its fault."""
    text = str(row.get("text"))
    mentions = [(target.get(f"span{n}_index"), target.get(f"span{n}_text"), n) for n in (1, 2)]
    if not all(
        isinstance(at, int) and mention and text.startswith(mention, at) for at, mention, _ in mentions
    ):
        return "a span of its target is not in the text"
    for at, mention, n in sorted(mentions, reverse=True):
        marked = f"_{mention}_" if n == 1 else f"[{mention}]"
        text = text[:at] + marked + text[at + len(mention) :]
    return row | {"text": text}
