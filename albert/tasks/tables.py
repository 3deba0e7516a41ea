"""Sentences and sentence pairs with a label or a number, from TSV, CSV or JSONL files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert.tasks.definition import Kind, Task
from albert.tasks.examples import Example
from albert.tasks.table_files import Role, Row, find_column, is_json_lines, json_rows, table_rows, width_of
from data.errors import InputError

# usual names of the columns, the most frequent first
USUAL: dict[Role, tuple[str, ...]] = {
    "text": (
        "sentence1", "text_a", "text", "sentence", "query1", "question1", "question", "content", "review",
    ),
    "pair": ("sentence2", "text_b", "query2", "question2"),
    "label": ("label", "labels", "gold", "target", "score", "is_duplicate"),
}  # fmt: skip


def read_table(
    path: Path, task: Task, placeholder: str | None = None
) -> tuple[Task, list[Example], list[str]]:
    """The task with its kind, the examples, and the rows that could not be used. A placeholder stands for the
    label of every row, and the file needs none.

    Raises InputError if the file is missing or empty, or lacks the task's columns.
    """
    header = task.header
    if placeholder is not None and header is not None and width_of(path) == len(header) - 1:
        names = (task.columns.get("label"), *USUAL["label"])
        header = tuple(name for name in header if name != next(one for one in names if one in header))
    usual = [name for names in USUAL.values() for name in names]
    rows = [*map(_with_marks, json_rows(path))] if is_json_lines(path) else [*table_rows(path, header, usual)]
    first = next((row for _, row in rows if isinstance(row, dict)), None)
    if first is None:
        raise InputError(f"{path} holds no example")
    roles: tuple[Role, ...] = ("text", "label") if task.kind is Kind.SINGLE else ("text", "label", "pair")
    roles = tuple(role for role in roles if role != "label" or placeholder is None)
    columns = {
        role: find_column(
            path,
            list(first),
            role,
            task.columns.get(role),
            USUAL[role],
            required=role != "pair" or task.kind is not None,
        )
        for role in roles
    }
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
        if role == "label" and isinstance(value, bool):
            value = str(value).lower()  # as YAML and JSON write it
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


def _with_marks(row: Row) -> Row:
    number, values = row
    target = None if isinstance(values, str) else values.get("target")
    return (number, _marked(values, target)) if isinstance(target, dict) and isinstance(values, dict) else row


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
