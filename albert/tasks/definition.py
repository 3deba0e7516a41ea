"""What a task is: its kind, its columns, its labels and its main metric, from a YAML task file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from data.errors import InputError
from data.options import options, parse
from data.workspace import check_name


class Kind(StrEnum):
    """What a model predicts."""

    SINGLE = "single"  # the label of a sentence
    PAIR = "pair"  # the label of two sentences
    MULTILABEL = "multilabel"  # any number of labels of one or two sentences
    CHOICE = "choice"  # the right answer among several
    SPAN = "span"  # the place of the answer in a passage
    TOKENS = "tokens"  # a tag for every token: B-, I- and O of entities
    REGRESSION = "regression"  # a number for one or two sentences
    # a number for two without training, by the cosine of mean-pooled states; and retrieval
    SIMILARITY = "similarity"


# the first is a task's main metric unless its file names another
METRICS: dict[Kind, tuple[str, ...]] = {
    Kind.SINGLE: ("accuracy", "macro_f1", "matthews", "f1"),
    Kind.PAIR: ("accuracy", "macro_f1", "matthews", "f1"),
    Kind.MULTILABEL: ("micro_f1", "macro_f1", "exact_match"),
    Kind.CHOICE: ("accuracy",),
    Kind.SPAN: ("answer_f1", "exact_match", "best_f1"),
    Kind.TOKENS: ("entity_f1", "entity_precision", "entity_recall"),
    Kind.REGRESSION: ("pearson", "spearman"),
    Kind.SIMILARITY: ("spearman", "pearson", "mrr"),
}
BINARY_METRICS = ("matthews", "f1")  # for two labels only, so reported only if a task asks for them
Pooling = Literal["cls", "mean", "cls+mean"]  # how the states of a text become one vector


@options
class Task:
    """A labelled task, and where its parts are in the files."""

    name: str
    """Name of the task in reports, tables and the catalog"""
    kind: Kind | None = None
    """What a model predicts; by default pair if the file has a second sentence, else single"""
    metric: str | None = None
    """The main metric, which chooses the epoch; by default the kind's first"""
    columns: Mapping[Literal["text", "pair", "label"], str] = Field(
        default_factory=dict,
        description="Columns by role: text, pair (the second sentence, or the question) and label; by "
        "default the usual names",
    )
    group: str | None = None
    """Column of each example's group, such as its law; a verdict takes a group's examples together"""
    header: tuple[str, ...] | None = None
    """Names of the columns of files that come without them"""
    pooling: Pooling | None = None
    """What a label is read from; by default as for other tasks"""
    labels: tuple[str, ...] | None = None
    """Labels or kinds of entities, in order; by default those of train; rows with others are skipped"""
    separator: str = Field(
        default=",", min_length=1, description="What stands between the labels of a multilabel cell"
    )
    answers: Literal["squad", "squad2", "cmrc"] = "squad"
    """How answers to spans are compared: by words as in SQuAD 1.1 or 2.0, by characters as in CMRC 2018"""

    def __post_init__(self) -> None:
        check_name(self.name, "task")
        if self.labels and len(set(self.labels)) < len(self.labels):
            raise InputError(f"task {self.name}: a label stands twice in {', '.join(self.labels)}")
        names = self._all_metrics()
        if self.metric is not None and self.metric not in names:
            raise InputError(
                f"task {self.name}: no metric {self.metric!r} for kind {self.kind or 'single or pair'}; "
                f"choose one of {', '.join(names)}"
            )

    def _all_metrics(self) -> tuple[str, ...]:
        names = METRICS[self.kind or Kind.SINGLE]
        return names if self.answers == "squad2" else tuple(name for name in names if name != "best_f1")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to report, the main one first."""
        names = self._all_metrics()
        main = self.metric or names[0]
        return (main, *(name for name in names if name != main and name not in BINARY_METRICS))


def shipped_tasks() -> dict[str, Path]:
    """The task files that come with jixu, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def load_task(name_or_file: str) -> Task:
    """The task of a YAML file, which by default has the file's name, or the shipped task of a name; any other
    name is a task with usual columns. Raises InputError for a name that looks like a shipped one misspelt.
    """
    shipped = shipped_tasks()
    path = shipped.get(name_or_file, Path(name_or_file))
    if path.suffix not in (".yaml", ".yml"):
        # other digits make another task, as in cmrc2019
        alike = [one for one in shipped if re.findall(r"\d", one) == re.findall(r"\d", name_or_file)]
        if near := get_close_matches(name_or_file.lower(), alike, 1, cutoff=0.8):
            raise InputError(
                f"no task {name_or_file!r}: did you mean {near[0]}? A task of your own needs a name less "
                "like it, or a task file"
            )
        return Task(name=name_or_file)
    if not path.is_file():
        raise InputError(f"no task file {path}")
    try:
        # every scalar as text: a label yes is no truth value, and 01 no number
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no task file: it has no fields")
    return parse(Task, {"name": path.stem} | content, str(path))
