"""Questions to a comparison as JSON has it (albert.comparison.Comparison.to_record)."""

from __future__ import annotations

from collections.abc import Mapping

Facts = Mapping[str, object]


def reported(model: Facts) -> Facts:
    """A model's scores on the reported split, by metric."""
    return model["dev"] if model["test"] is None else model["test"]


def difference_of(facts: Facts, model: str) -> Facts | None:
    """Of a model to the baseline; None for the baseline."""
    return next((one for one in facts["differences"] if one["model"] == model), None)


def subject(evaluation: Facts) -> Facts:
    """The model that the verdict is about: of those compared with the first, the one that is best on dev, so
    that test has no say in which is named.
    """
    metric = evaluation["metric"]
    return max(evaluation["models"][1:], key=lambda model: model["dev"][metric]["mean"])


def is_contaminated(model: Facts) -> bool:
    """Whether a corpus the model was pretrained on holds texts of the task's dev or test."""
    return any(one["found"] for one in model["contamination"])


def label_of(model: Facts) -> str:
    """A model's name with its note."""
    return f"{model['name']} ({model['note']})" if model["note"] else model["name"]


def metric_name(metric: str) -> str:
    """
    >>> metric_name("macro_f1")
    'macro F1'
    """
    return metric.replace("_", " ").replace("f1", "F1")
