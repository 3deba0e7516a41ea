"""The splits of a task, read by its kind and checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from albert.tasks.definition import Kind, Task
from albert.tasks.examples import Found, Split, group_of
from albert.tasks.overlap import Overlap, find_overlaps, without_copies
from albert.tasks.passages import read_choices, read_spans
from albert.tasks.tables import read_table
from albert.tasks.tagged import read_tagged
from data.errors import InputError


@dataclass(frozen=True, slots=True)
class TaskData:
    """A task with its splits."""

    task: Task  # with its kind
    splits: Mapping[str, Split]
    labels: tuple[str, ...]  # of single, pair, multilabel and tokens; else empty
    overlaps: tuple[Overlap, ...] = ()  # as the files are
    dropped: int = 0  # training examples that were left out for their copies in other splits

    @property
    def absent(self) -> tuple[str, ...]:
        """A line for each split without an example of some labels: they may be misspelt."""
        lines = []
        for name, split in self.splits.items():
            seen = {label for labels in split.label_sets for label in labels}
            if split.label_sets and (lacking := [label for label in self.labels if label not in seen]):
                shown = ", ".join(lacking[:5]) + (", ..." if len(lacking) > 5 else "")
                lines.append(f"{name} has no example of {len(lacking)} of {len(self.labels)} labels: {shown}")
        return tuple(lines)


def read_split(path: Path, task: Task, placeholder: str | None = None) -> tuple[Task, Split]:
    """The task with its kind, and the examples of a file. With a placeholder, labels and answers are not
    read: the label of each example is the placeholder.

    Raises InputError if the file is missing or empty, does not fit the task, or has no column of its groups.
    """
    is_labelled = placeholder is None
    if not path.exists():
        raise InputError(f"no file {path}")
    found: Iterable[Found]
    if task.kind is Kind.SPAN:
        found = read_spans(path, task.columns, task.group, is_labelled)
    elif task.kind is Kind.CHOICE:
        found = read_choices(path, is_labelled)
    elif task.kind is Kind.TOKENS:
        found = read_tagged(path, task.labels, task.group, is_labelled)
    else:
        task, found = read_table(path, task, placeholder)
    found = list(found)
    examples = tuple(one for _, one in found if not isinstance(one, str))
    skipped = tuple(f"{where}: {one}" for where, one in found if isinstance(one, str))
    if not examples:
        first = f"; first problem: {skipped[0]}" if skipped else ""
        raise InputError(f"no usable example in {path}{first}")
    if task.group is not None and is_labelled and None in map(group_of, examples):
        raise InputError(
            f"task {task.name}: no column {task.group!r} for groups in each row of {path}; only tables and "
            "JSON lines of one sentence or question have columns"
        )
    return task, Split(path, examples, skipped)


def read_task(task: Task, paths: Mapping[str, Path], *, drop_overlap: bool = False) -> TaskData:
    """Read the splits at `paths`, train first, and compare them; training examples that are in another split
    can be dropped. Raises InputError if one does not fit the task or training, or is given twice.
    """
    for (name, path), (other, same) in combinations(paths.items(), 2):
        if path.exists() and same.exists() and path.samefile(same):
            raise InputError(
                f"--{name} and --{other} are the same file, {path}: its scores would mean nothing"
            )
    splits: dict[str, Split] = {}
    for name, path in paths.items():
        task, splits[name] = read_split(path, task)
    overlaps, dropped = find_overlaps(splits), 0
    if drop_overlap and "train" in splits:
        train = without_copies(splits)
        if not train.examples:
            raise InputError(f"every example of {train.path} is in another split: nothing is left to learn")
        dropped = len(splits["train"].examples) - len(train.examples)
        splits["train"] = train
    labels: tuple[str, ...] = ()
    if task.kind in (Kind.SINGLE, Kind.PAIR, Kind.MULTILABEL):
        labels = _labels(task, splits)
    elif task.kind is Kind.TOKENS:
        labels = _tags(splits)
    return TaskData(task, splits, labels, overlaps, dropped)


def _labels(task: Task, splits: Mapping[str, Split]) -> tuple[str, ...]:
    """The sorted labels of the training examples. Raises InputError if they are fewer than two, or if another
    split has others.
    """
    train = splits["train"]
    seen = {label for labels in train.label_sets for label in labels}
    labels = tuple(sorted(seen)) if task.labels is None else task.labels
    if len(seen) < 2:
        only = f"the one label {min(seen)!r}" if seen else "no label"
        raise InputError(f"{train.path} has {only}: there is nothing to tell apart")
    for split in splits.values():
        for row, of_row in enumerate(split.label_sets, 2):
            if unknown := sorted(set(of_row) - set(labels)):
                raise InputError(
                    f"label {unknown[0]!r} in {split.path} (about row {row}) does not occur in {train.path}; "
                    f"its labels are {', '.join(labels)}"
                )
    return labels


def _tags(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """O, then B- and I- of every entity type of the training sentences."""

    def types(split: Split) -> set[str]:
        return {tag[2:] for tags in split.tags for tag in tags if tag != "O"}

    known = sorted(types(splits["train"]))
    if not known:
        raise InputError(f"{splits['train'].path} has no entity: there is nothing to find")
    for split in splits.values():
        if unknown := sorted(types(split) - set(known)):
            raise InputError(f"entity type {unknown[0]!r} in {split.path} does not occur in training")
    return ("O", *(f"{prefix}-{name}" for name in known for prefix in "BI"))
