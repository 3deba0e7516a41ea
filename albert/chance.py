"""What an answer scores that knows nothing, and whether a model has left that level."""

from __future__ import annotations

import numpy as np

from albert.metrics import chance_margin, constant_score
from albert.tasks import ChoiceExample, Kind, Split, TaskData


def chance_of(data: TaskData, split: Split) -> float:
    """The main metric of an answer that looks at nothing: the most frequent training label, or for f1 the one
    that is scored; a guess among the choices; 0 for other kinds, where there is no such answer.
    """
    kind, metric = data.task.kind, data.task.metrics[0]
    if kind is Kind.CHOICE:
        counts = [len(one.choices) for one in split.examples if isinstance(one, ChoiceExample)]
        return float(np.mean([1 / count for count in counts]))
    if kind not in (Kind.SINGLE, Kind.PAIR):
        return 0.0
    number = {label: at for at, label in enumerate(data.labels)}
    train, gold = (
        np.array([number[one.label] for one in part.examples]) for part in (data.splits["train"], split)
    )
    label = len(data.labels) - 1 if metric == "f1" else int(np.bincount(train).argmax())
    return constant_score(metric, gold, label, len(data.labels))


def leaves_chance(data: TaskData, split: Split, value: float) -> bool:
    """Whether a main metric on a split is further above chance level than an accident would take it."""
    chance = chance_of(data, split)
    return value > chance + chance_margin(data.task.metrics[0], chance, len(split.examples))
