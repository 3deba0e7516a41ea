"""The learner of a task."""

from __future__ import annotations

from albert.learners.choice import Choice
from albert.learners.classification import Classification
from albert.learners.learner import Learner
from albert.learners.regression import Regression, Similarity
from albert.learners.span import Span
from albert.learners.tagging import Tagging
from albert.tasks import Kind, TaskData


def find_learner(data: TaskData) -> Learner:
    """What the task's kind trains and predicts."""
    task = data.task
    match task.kind:
        case Kind.SINGLE | Kind.PAIR:
            return Classification(data.labels, task.metrics)
        case Kind.CHOICE:
            return Choice()
        case Kind.SPAN:
            train = data.splits["train"].examples
            return Span(task.answers, has_unanswerable=any(not one.answers for one in train))
        case Kind.TOKENS:
            return Tagging(data.labels)
        case Kind.REGRESSION:
            return Regression(task.metrics)
        case Kind.SIMILARITY:
            return Similarity(task.metrics)
    raise AssertionError(f"a task whose kind is not decided: {task}")
