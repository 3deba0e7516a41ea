"""Labelled examples of a task: single sentences or sentence pairs from TSV, CSV or JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.records import InputError

# names people give the columns, the usual ones first
_FIRST = ("sentence1", "text_a", "text", "sentence", "query1", "question1", "content")
_SECOND = ("sentence2", "text_b", "query2", "question2")
_LABEL = ("label", "labels", "gold", "target")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learnt and where it stands in the file. None: found by the columns' usual names."""

    name: str
    text_column: str | None = None
    pair_column: str | None = None  # the second sentence; a task without one has single sentences
    label_column: str | None = None


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    pair: str | None
    label: str


@dataclass(frozen=True, slots=True)
class Split:
    """The examples of one file, and what in it could not be used."""

    path: Path
    examples: tuple[Example, ...]
    skipped: tuple[str, ...]  # one line a row: where and why


def read_split(path: Path, task: Task) -> Split:
    """Examples of a file. Raises InputError when it is missing, empty, or has not the task's columns."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        rows = list(_jsonl_rows(path) if path.suffix in (".jsonl", ".json") else _table_rows(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    first = next((row for _, row in rows if isinstance(row, dict)), None)
    if first is None:
        raise InputError(f"{path} holds no example")
    names = list(first)
    text = _column(path, names, task.text_column, _FIRST, "text")
    label = _column(path, names, task.label_column, _LABEL, "label")
    pair = _column(path, names, task.pair_column, _SECOND, None)
    examples, skipped = [], []
    for number, row in rows:
        problem = row if isinstance(row, str) else _problem(row, text, pair, label)
        if problem:
            skipped.append(f"{path}, row {number}: {problem}")
        else:
            examples.append(
                Example(str(row[text]), str(row[pair]) if pair else None, str(row[label]).strip())
            )
    if not examples:
        raise InputError(f"no usable example in {path}; first problem: {skipped[0]}")
    return Split(path, tuple(examples), tuple(skipped))


def _column(
    path: Path, names: list[str], asked: str | None, usual: Sequence[str], what: str | None
) -> str | None:
    if asked is not None:
        if asked not in names:
            raise InputError(f"no column {asked!r} in {path}; its columns are {', '.join(map(str, names))}")
        return asked
    found = next((name for name in usual if name in names), None)
    if found is None and what is not None:
        raise InputError(
            f"no {what} column in {path} (columns: {', '.join(map(str, names))}): "
            f"expected one of {', '.join(usual)}, or name it in a task file"
        )
    return found


def _problem(row: dict[str, object], text: str, pair: str | None, label: str) -> str | None:
    for name in (text, pair, label):
        if name is None:
            continue
        value = row.get(name)
        if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
            return f"column {name!r} is {'missing' if value is None else 'empty or no text'}"
    return None


def _table_rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Rows of a TSV (no quoting) or CSV with a header; a row of another width is yielded as its problem."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            rows = csv.reader(file, strict=True)
        else:
            rows = csv.reader((line.rstrip("\r\n") for line in file), delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(rows, [])
        for number, row in enumerate(rows, 2):
            if len(row) == len(header):
                yield number, dict(zip(header, row, strict=True))
            elif row:
                yield number, f"{len(row)} columns where the header has {len(header)}"


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, object] | str]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield number, "not JSON"
                continue
            yield number, row if isinstance(row, dict) else "not a JSON object"


def label_set(train: Split, others: Sequence[Split]) -> tuple[str, ...]:
    """The labels of the training examples in order. Raises InputError for fewer than two, or for a label that
    occurs only elsewhere.
    """
    labels = tuple(sorted({example.label for example in train.examples}))
    if len(labels) < 2:
        raise InputError(f"{train.path} has the one label {labels[0]!r}: there is nothing to tell apart")
    for split in others:
        unknown = sorted({example.label for example in split.examples} - set(labels))
        if unknown:
            row = next(i for i, example in enumerate(split.examples, 2) if example.label == unknown[0])
            raise InputError(
                f"label {unknown[0]!r} in {split.path} (about row {row}) does not occur in {train.path}; "
                f"its labels are {', '.join(labels)}"
            )
    return labels
