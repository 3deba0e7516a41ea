"""Questions to a comparison as JSON has it (albert.comparison.Comparison.to_record)."""

from __future__ import annotations

from collections.abc import Sequence

from albert.reports.sections import Facts


def reported(model: Facts) -> Facts:
    """A model's scores on the reported split, by metric."""
    return model["dev"] if model["test"] is None else model["test"]


def difference_of(facts: Facts, model: str) -> Facts | None:
    """Of a model to the baseline; None for the baseline."""
    return next((one for one in facts["differences"] if one["model"] == model), None)


def subject(evaluation: Facts) -> Facts:
    """The model that the verdict is about: of those compared with the first, the one that is best on dev, so
    that test has no say in which. One whose corpus holds texts of the task only if there is no other.
    """
    first, *others = evaluation["models"]
    clean = [model for model in others if not has_read_more(model, first)]
    return max(clean or others, key=lambda model: model["dev"][evaluation["metric"]]["mean"])


def has_read_more(model: Facts, other: Facts) -> bool:
    """Whether one of two models was pretrained on texts of the task's dev or test that the other was not, so
    that their difference says nothing.
    """
    return _leaks(model) != _leaks(other)


def _leaks(model: Facts) -> set[tuple[str, int, str]]:
    return {(one["corpus"], one["version"], one["split"]) for one in model["contamination"] if one["found"]}


def evaluation_titles(evaluations: Sequence[Facts]) -> list[str]:
    """A title for each; where there are several, with the model that others are compared with."""
    titles = [f"Evaluation: {facts['task']}" for facts in evaluations]
    if len(titles) == 1:
        return titles
    firsts = [facts["models"][0]["name"] for facts in evaluations]
    return [f"{title}, against {first}" for title, first in zip(titles, firsts, strict=True)]


def label_of(model: Facts) -> str:
    """A model's name with its note."""
    return f"{model['name']} ({model['note']})" if model["note"] else model["name"]


def metric_name(metric: str) -> str:
    """
    >>> metric_name("macro_f1")
    'macro F1'
    """
    return metric.replace("_", " ").replace("f1", "F1")
