"""The folded parts of an evaluation: classes, slices, examples, learning rates, seeds."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import ChangedExample, Changes, ClassScore, Comparison, ModelResult
from albert.reports.evaluation_plots import MOST_LABELS, model_lines
from albert.reports.plots import curves
from albert.reports.sections import (
    MISSING,
    Passage,
    Section,
    Table,
    change,
    counted,
    number,
    points,
    spread,
)

_MOST_CONFUSIONS = 20


def class_details(comparison: Comparison) -> list[Section]:
    """Precision, recall and F1 of each label, the models side by side; of many models F1 alone."""
    models = [model for model in comparison.models if model.classes]
    if not models:
        return []
    is_pair = len(models) == 2
    parts = ("precision", "recall", "F1") if len(models) <= 2 else ("F1",)
    by_label = [{score.label: score for score in model.classes} for model in models]
    rows = []
    for label in dict.fromkeys(label for scores in by_label for label in scores):
        scores = [of_model.get(label) for of_model in by_label]
        cells = [_class_score(score, part) for score in scores for part in parts]
        first, last = scores[0], scores[-1]
        gain = change(last.f1 - first.f1) if first and last else MISSING
        support = next(score.support for score in scores if score)
        rows.append((label, number(support), *cells, *([gain] if is_pair else [])))
    head = ["Label", "examples", *(f"{model.name} {part}" for model in models for part in parts)]
    head += ["change of F1"] if is_pair else []
    table = Table("In points, over all seeds.", tuple(head), tuple(rows))
    return [Section(title="Every class", tables=(table,))]


def _class_score(score: ClassScore | None, part: str) -> str:
    if score is None:
        return MISSING
    return points({"precision": score.precision, "recall": score.recall, "F1": score.f1}[part])


def confusion_details(comparison: Comparison) -> list[Section]:
    """The most frequent confusions, if there are too many labels for a matrix."""
    if len(comparison.labels) <= MOST_LABELS:
        return []
    tables = [_confusions(model, comparison.labels) for model in comparison.models if model.confusion]
    return [Section(title="Confusion", tables=tuple(tables))] if tables else []


def _confusions(model: ModelResult, labels: Sequence[str]) -> Table:
    wrong = [
        (count, labels[i], labels[j])
        for i, row in enumerate(model.confusion or ())
        for j, count in enumerate(row)
        if count and i != j
    ]
    most = sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]
    rows = tuple((gold, predicted, number(count)) for count, gold, predicted in most)
    caption = f"The most frequent confusions of {model.name}, over all seeds"
    return Table(caption, ("Gold", "predicted", "examples"), rows, words=(0, 1))


def slice_details(comparison: Comparison) -> list[Section]:
    """The main metric by the length of the examples and the domain words in them."""
    models = [model for model in comparison.models if model.slices]
    if not models:
        return []
    rows = []
    for part, *others in zip(*(model.slices for model in models), strict=True):
        end = "and more" if part.high is None else f"to {part.high}"
        name = f"{part.by} {part.low}" + ("" if part.high == part.low else f" {end}")
        rows.append((name, number(part.examples), *(spread(one.score) for one in (part, *others))))
    head = ("Examples by", "examples", *(model.name for model in models))
    table = Table("The main metric in points, mean ± half its 95% interval.", head, tuple(rows))
    return [Section(title="By length and content", tables=(table,))]


def overlap_details(comparison: Comparison) -> list[Section]:
    """Examples of a split that an earlier split has too."""
    return [
        Section(
            title=one.describe(),
            passages=tuple(Passage(text, f"in {one.earlier}: {earlier}") for text, earlier in one.shown),
        )
        for one in comparison.overlaps
    ]


def changed_details(comparison: Comparison) -> list[Section]:
    """Examples that most seeds get right with one model and wrong with the other."""
    sections = []
    for one in comparison.changes:
        for verb, count, examples in (
            ("fixed", one.fixed, one.fixed_examples),
            ("broken", one.broken, one.broken_examples),
        ):
            if examples:
                passages = tuple(Passage(example.text, _change_of(example, one)) for example in examples)
                title = f"{counted(count, 'example')} {verb} by {one.model}"
                sections.append(Section(title=title, passages=passages))
    return sections


def _change_of(example: ChangedExample, changes: Changes) -> str:
    return (
        f"example {example.number}, gold {example.gold}\n"
        f"{changes.baseline}: {example.baseline}, right with {counted(example.baseline_right, 'seed')}\n"
        f"{changes.model}: {example.model}, right with {counted(example.model_right, 'seed')}"
    )


def sweep_details(comparison: Comparison, name: str) -> list[Section]:
    """The learning rates that were tried with the first seed."""
    lines = model_lines(
        comparison, lambda model: sorted((tried.learning_rate, 100 * tried.dev) for tried in model.sweep)
    )
    if not lines:
        return []
    unit = "dev score in points, first seed"
    plot = curves(f"{name}-sweep", "Learning rates tried", unit, lines, x_label="learning rate", log_x=True)
    return [Section(title="Learning rates", plots=(plot,))]


def seed_details(comparison: Comparison) -> list[Section]:
    """Every fine-tuning run."""
    metric = comparison.metric
    rows = tuple(
        (
            model.name,
            str(seed.seed),
            f"{seed.learning_rate:.2g}",
            str(seed.best_epoch),
            str(seed.restarts),
            points(seed.dev[metric]),
            points(seed.test[metric] if seed.test else None)
            + ("" if seed.left_chance else " (at chance level)"),
            number(seed.seconds),
            number(seed.examples_per_second),
        )
        for model in comparison.models
        for seed in model.seeds
    )
    head = (
        "Model",
        "seed",
        "learning rate",
        "best epoch",
        "restarts",
        "dev",
        "test",
        "seconds",
        "examples/s",
    )
    caption = "The main metric in points. A start that does not leave chance level is counted and repeated."
    return [Section(title="Every seed", tables=(Table(caption, head, rows),))]
