"""What a task is: its kind, its columns, its labels and the metric it is judged by, from a YAML task file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import resources
from pathlib import Path

import yaml

from albert.tasks.answers import STYLES
from data.errors import InputError
from data.workspace import check_name


class Kind(StrEnum):
    """What is asked of a model."""

    SINGLE = "single"  # the label of a sentence
    PAIR = "pair"  # the label of two
    CHOICE = "choice"  # which of a question's answers is right
    SPAN = "span"  # where in a passage the answer stands
    TOKENS = "tokens"  # a tag for every token: B-, I- and O of entities
    REGRESSION = "regression"  # a number for two sentences
    SIMILARITY = "similarity"  # the same without training, by cosine of mean-pooled states; and retrieval


# the first is a task's main metric unless its file names another
METRICS: dict[Kind, tuple[str, ...]] = {
    Kind.SINGLE: ("accuracy", "macro_f1", "matthews", "f1"),
    Kind.PAIR: ("accuracy", "macro_f1", "matthews", "f1"),
    Kind.CHOICE: ("accuracy",),
    Kind.SPAN: ("answer_f1", "exact_match"),
    Kind.TOKENS: ("entity_f1", "entity_precision", "entity_recall"),
    Kind.REGRESSION: ("pearson", "spearman"),
    Kind.SIMILARITY: ("spearman", "pearson", "mrr"),
}
_BINARY = ("matthews", "f1")  # of two labels alone, so reported where a task asks for them
ROLES = ("text", "pair", "label")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learnt and where it stands in the files."""

    name: str
    kind: Kind | None = None  # None: pair where the file has a second sentence, else single
    metric: str | None = None  # the main one; None: the kind's first
    # column of a role; one that is not named is found by its usual names
    columns: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] | None = None  # names of the columns of files that come without them
    labels: tuple[str, ...] | None = None  # None: those of the training file; others' rows are skipped
    # how a span's answer is compared: by words as in SQuAD 1.1 or 2.0 ("squad", "squad2"), or by characters
    answers: str = "squad"

    def __post_init__(self):
        check_name(self.name, "task")
        if self.metric is not None and self.metric not in METRICS.get(self.kind, _ANY_METRIC):
            raise InputError(
                f"task {self.name}: no metric {self.metric!r} for kind {self.kind or 'single or pair'}; "
                f"choose one of {', '.join(METRICS.get(self.kind, _ANY_METRIC))}"
            )
        if unknown := set(self.columns) - set(ROLES):
            raise InputError(
                f"task {self.name}: no role {', '.join(sorted(unknown))} in columns; roles are "
                f"{', '.join(ROLES)}"
            )
        if self.answers not in STYLES:
            raise InputError(f"task {self.name}: answers={self.answers!r}: choose {', '.join(STYLES)}")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those reported, the main one first. Raises KeyError while the kind is not known."""
        known = METRICS[self.kind]
        main = self.metric or known[0]
        return (main, *(name for name in known if name != main and name not in _BINARY))


_ANY_METRIC = METRICS[Kind.SINGLE]


def shipped_tasks() -> dict[str, Path]:
    """Task files that come with jixu, by name."""
    folder = Path(str(resources.files("albert.tasks")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_task(name_or_file: str) -> Task:
    """A task of a YAML file, a shipped one by its name, or one with usual columns under a name of its own."""
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        if name_or_file not in shipped_tasks():
            return Task(name=name_or_file)
        path = shipped_tasks()[name_or_file]
    if not path.is_file():
        raise InputError(f"no task file {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    return _task_of(content, path)


def _task_of(content: object, path: Path) -> Task:
    known = [one.name for one in fields(Task)]
    if not isinstance(content, dict) or "name" not in content or set(content) - set(known):
        wrong = sorted(map(str, set(content) - set(known))) if isinstance(content, dict) else [str(content)]
        raise InputError(
            f"{path}: a task file has name and may have {', '.join(known[1:])}; "
            f"found {', '.join(wrong) or 'no name'}"
        )
    values = {name: value for name, value in content.items() if value is not None}
    for name, value in values.items():
        if name == "columns":
            fits = isinstance(value, dict) and all(isinstance(v, str) for v in (*value, *value.values()))
        elif name in ("header", "labels"):
            fits = isinstance(value, list) and all(isinstance(v, (str, int)) for v in value)
            values[name] = tuple(map(str, value)) if fits else ()
        else:
            fits = isinstance(value, str)
        if not fits:
            what = {"columns": "roles and their columns", "header": "a list", "labels": "a list"}
            raise InputError(f"{path}: {name} must be {what.get(name, 'text')}")
    if "kind" in values:
        if values["kind"] not in list(Kind):
            raise InputError(f"{path}: no kind {values['kind']!r}; choose one of {', '.join(Kind)}")
        values["kind"] = Kind(values["kind"])
    return Task(**values)
