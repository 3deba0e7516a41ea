"""The learner of each kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from albert.finetuning.choice import Choice
from albert.finetuning.classification import Classification, MultiLabel
from albert.finetuning.learner import Learner
from albert.finetuning.regression import Regression, Similarity
from albert.finetuning.span import Span
from albert.finetuning.tagging import Tagging
from albert.tasks import Kind, Pooling, Task


def find_learner(
    task: Task, labels: Sequence[str], pooling: Pooling | Literal["auto"], has_unanswerable: bool
) -> Learner:
    """The learner of the task's kind."""
    assert pooling != "auto"
    match task.kind:
        case Kind.SINGLE | Kind.PAIR | None:
            return Classification(labels, task.metrics, pooling)
        case Kind.MULTILABEL:
            return MultiLabel(labels, task.metrics, pooling, task.separator)
        case Kind.CHOICE:
            return Choice(pooling)
        case Kind.SPAN:
            return Span(task.answers, has_unanswerable=has_unanswerable)
        case Kind.TOKENS:
            return Tagging(labels)
        case Kind.REGRESSION:
            return Regression(pooling)
        case Kind.SIMILARITY:
            return Similarity()
