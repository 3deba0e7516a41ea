"""The splits of a task, read by its kind and checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from albert.tasks.definition import BINARY_METRICS, Kind, Task
from albert.tasks.examples import AnyExample, Found, Split
from albert.tasks.overlap import Overlap, find_overlaps, without_copies
from albert.tasks.parting import SHARES, set_aside
from albert.tasks.passages import read_choices, read_spans
from albert.tasks.tables import read_table
from albert.tasks.tagged import kinds_of, read_tagged
from data.errors import InputError


@dataclass(frozen=True, slots=True)
class TaskData:
    """A task with its splits."""

    task: Task  # with its kind
    splits: Mapping[str, Split]
    labels: tuple[str, ...]  # of single, pair, multilabel and tokens; else empty
    overlaps: tuple[Overlap, ...] = ()  # as the files are
    dropped: int = 0  # training examples that were left out for their copies in other splits
    parted: str | None = None  # which splits are parts of the training file

    @property
    def absent(self) -> tuple[str, ...]:
        """A line for each split without an example of some labels: they may be misspelt."""
        lines, expected = [], self.labels
        if self.task.kind is Kind.TOKENS:  # examples have types of entities
            expected = tuple(tag[2:] for tag in self.labels if tag.startswith("B-"))
        for name, split in self.splits.items():
            seen = {label for labels in split.label_sets for label in labels}
            if lacking := [label for label in expected if label not in seen]:
                lines.append(
                    f"{name} has no example of {len(lacking)} of {len(expected)} labels: {_first(lacking)}"
                )
        return tuple(lines)


_MALFORMED = (AttributeError, LookupError, TypeError)  # of rows that are not as a format has them
_LABELLED = (Kind.SINGLE, Kind.PAIR, Kind.MULTILABEL, Kind.TOKENS)
_READERS = {Kind.SPAN: read_spans, Kind.CHOICE: read_choices, Kind.TOKENS: read_tagged}


def read_split(path: Path, task: Task, *, is_labelled: bool = True) -> tuple[Task, Split]:
    """The task with its kind, and the examples of a file, of which labels and answers may not be read.

    Raises InputError if the file is missing or empty, does not fit the task, or has no column of its groups.
    """
    found: Iterable[Found]
    if task.kind in _READERS:
        found = _READERS[task.kind](path, task, is_labelled)
    else:
        task, found = read_table(path, task, is_labelled)
    try:
        examples, skipped = _made(found)
    except _MALFORMED as error:  # such as KeyError: 'qas'
        fault = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} is not in a format of task {task.name} ({fault})") from None
    if not examples:
        first = f"; first problem: {skipped[0]}" if skipped else ""
        raise InputError(f"no usable example in {path}{first}")
    if task.group is not None and is_labelled and None in (one.group for one in examples):
        raise InputError(
            f"task {task.name}: no column {task.group!r} for groups in each row of {path}, or an empty one; "
            "only tables and JSON lines of one sentence or question have columns"
        )
    return task, Split(path, tuple(examples), tuple(skipped))


def _made(found: Iterable[Found]) -> tuple[list[AnyExample], list[str]]:
    """The examples of a file, and a line for each row that has none."""
    examples, skipped = [], []
    for where, make in found:
        try:
            example = make()
            parts = *example.texts(), example.describe(), example.gold(), example.id, example.group or ""
            "".join(parts).encode()
        except ValueError as fault:  # of encode: JSON can escape half a character
            skipped.append(f"{where}: {fault}")
        except _MALFORMED:
            skipped.append(f"{where}: not in a format of the task")
        else:
            examples.append(example)
    return examples, skipped


def _first(names: Sequence[str]) -> str:
    shown = [name if len(name) <= 40 else f"{name[:40]}…" for name in names[:5]]
    return ", ".join([*shown, "..."] if len(names) > 5 else shown)


def read_task(task: Task, paths: Mapping[str, Path], *, drop_overlap: bool = False) -> TaskData:
    """Read the splits at `paths`, train first, and compare them; training examples that are in another split
    can be dropped. Without dev, it is set aside from train, and test too if it is not given.

    Raises InputError if a split does not fit the task or training, or is given twice.
    """
    for (name, path), (other, same) in combinations(paths.items(), 2):
        if path.exists() and same.exists() and path.samefile(same):
            raise InputError(
                f"--{name} and --{other} are the same file, {path}: its scores would mean nothing"
            )
    splits: dict[str, Split] = {}
    for name, path in paths.items():
        task, splits[name] = read_split(path, task)
    if len({len(split.examples[0].texts()) for split in splits.values()}) > 1:
        raise InputError(
            f"only some of {', '.join(splits)} have a second sentence: give all the same columns"
        )
    parted = None
    if "dev" not in splits:
        splits, parted = _part(task, splits)
    overlaps, dropped = find_overlaps(splits), 0
    if drop_overlap and "train" in splits:
        train = without_copies(splits)
        if not train.examples:
            raise InputError(f"every example of {train.path} is in another split: nothing is left to learn")
        dropped = len(splits["train"].examples) - len(train.examples)
        splits["train"] = train
    labels: tuple[str, ...] = ()
    if task.kind in _LABELLED:
        labels = _labels(task, splits, dropped)
    return TaskData(task, splits, labels, overlaps, dropped, parted)


def _part(task: Task, splits: Mapping[str, Split]) -> tuple[dict[str, Split], str]:
    """The splits with those that are set aside from train, and a sentence about them."""
    names = [name for name in ("dev", "test") if name not in splits]
    whole = splits["train"]
    parted = set_aside(whole, names, by_label=task.kind in _LABELLED)
    counts = " and ".join(f"{len(parted[name].examples):,} for {name}" for name in names)
    line = f"of {len(whole.examples):,} examples {counts} were set aside, alike texts together"
    every = {**splits, **parted}
    return {name: every[name] for name in ("train", *SHARES)}, line


def _labels(task: Task, splits: Mapping[str, Split], dropped: int) -> tuple[str, ...]:
    """The labels that the task lists, else the sorted ones of the training examples; of tagged ones O, then
    B- and I- of every type of entity that is listed or occurs there.

    Raises InputError if there is nothing to tell apart, or if another split has other labels.
    """
    train, is_tagged = splits["train"], task.kind is Kind.TOKENS
    place = f"{train.path} without {dropped:,} dropped examples" if dropped else f"{train.path}"
    seen = {label for labels in train.label_sets for label in labels}
    if len(seen) < (1 if is_tagged else 2):
        only = f"the one label {min(seen)!r}" if seen else "no entity" if is_tagged else "no label"
        raise InputError(f"{place} has {only}: there is nothing to tell apart")
    known = tuple(sorted(seen | kinds_of(task))) if task.labels is None or is_tagged else task.labels
    if task.metrics[0] in BINARY_METRICS and len(known) != 2:
        raise InputError(
            f"task {task.name}: {task.metrics[0]} is for two labels, and {place} has {len(known)}: use "
            "accuracy or macro_f1"
        )
    are_many = task.kind in (Kind.SINGLE, Kind.PAIR) and 2 * len(known) > len(train.examples)
    hint = "; for tags, numbers or lists, make a task file with kind: tokens, regression or multilabel"
    for split in splits.values():
        for row, of_row in enumerate(split.label_sets, 2):
            if unknown := sorted(set(of_row) - set(known)):
                raise InputError(
                    f"label {_first(unknown[:1])!r} in {split.path} (about row {row}) does not occur in "
                    f"{place}; its {len(known)} labels are {_first(known)}{hint if are_many else ''}"
                )
    return ("O", *(f"{prefix}-{name}" for name in known for prefix in "BI")) if is_tagged else known
