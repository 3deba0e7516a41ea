"""The parts of an evaluation that open when they are asked for: classes, slices, examples, rates, seeds."""

from __future__ import annotations

from albert.reports.evaluation_plots import MOST_LABELS, model_lines
from albert.reports.plots import curves
from albert.reports.sections import (
    MISSING,
    Facts,
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


def class_details(facts: Facts) -> list[Section]:
    """Precision, recall and F1 of each label, the models side by side."""
    models = [model for model in facts["models"] if model["classes"]]
    if not models:
        return []
    wide = len(models) <= 2
    parts = ("precision", "recall", "F1") if wide else ("F1",)
    by_label = [{one["label"]: one for one in model["classes"]} for model in models]
    rows = []
    for label in dict.fromkeys(label for scores in by_label for label in scores):
        found = [scores.get(label) for scores in by_label]
        support = next(one["support"] for one in found if one)
        cells = [points(one[part.lower()]) if one else MISSING for one in found for part in parts]
        gain = change(found[-1]["f1"] - found[0]["f1"]) if len(models) == 2 and all(found) else None
        rows.append((label, number(support), *cells, *([gain or MISSING] if len(models) == 2 else [])))
    head = ["Label", "examples", *(f"{model['name']} {part}" for model in models for part in parts)]
    head += ["change of F1"] if len(models) == 2 else []
    table = Table("In points, over all seeds.", tuple(head), tuple(rows))
    return [Section(title="Every class", tables=(table,))]


def confusion_details(facts: Facts) -> list[Section]:
    """The most frequent confusions, where labels are too many for a matrix."""
    models = [model for model in facts["models"] if model["confusion"]]
    if len(facts["labels"]) <= MOST_LABELS or not models:
        return []
    tables = tuple(_confusions(model, facts["labels"]) for model in models)
    return [Section(title="Confusion", tables=tables)]


def _confusions(model: Facts, labels: list[str]) -> Table:
    wrong = [
        (count, labels[i], labels[j])
        for i, row in enumerate(model["confusion"])
        for j, count in enumerate(row)
        if count and i != j
    ]
    rows = tuple(
        (gold, taken, number(n)) for n, gold, taken in sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]
    )
    caption = f"The most frequent confusions of {model['name']}, over all seeds"
    return Table(caption, ("Gold", "predicted", "examples"), rows, words=(0, 1))


def slice_details(facts: Facts) -> list[Section]:
    """The main metric by length and by what an example holds."""
    models = [model for model in facts["models"] if model["slices"]]
    if not models:
        return []
    rows = []
    for n, part in enumerate(models[0]["slices"]):
        scores = [model["slices"][n]["score"] for model in models]
        cells = [spread(score) for score in scores]
        end = "and more" if part["high"] is None else f"to {part['high']}"
        what = f"{part['by']} {part['low']}" + ("" if part["high"] == part["low"] else f" {end}")
        rows.append((what, number(part["examples"]), *cells))
    head = ("Examples by", "examples", *(model["name"] for model in models))
    table = Table("The main metric in points, mean ± standard deviation over the seeds.", head, tuple(rows))
    return [Section(title="By length and content", tables=(table,))]


def changed_details(facts: Facts) -> list[Section]:
    """Examples that most seeds answer rightly with one model and wrongly with the other."""
    sections = []
    for one in facts["differences"]:
        for key, verb in (("fixed", "fixed"), ("broken", "broken")):
            examples = one[f"{key}_examples"]
            if examples:
                passages = tuple(Passage(e["text"], _change_of(e, one)) for e in examples)
                count = counted(one[key], "example")
                sections.append(Section(title=f"{count} {verb} by {one['model']}", passages=passages))
    return sections


def _change_of(example: Facts, difference: Facts) -> str:
    seeds = [counted(example[key], "seed") for key in ("baseline_right", "model_right")]
    return (
        f"example {example['number']}, gold {example['gold']}\n"
        f"{difference['baseline']}: {example['baseline']}, right with {seeds[0]}\n"
        f"{difference['model']}: {example['model']}, right with {seeds[1]}"
    )


def sweep_details(facts: Facts, name: str) -> list[Section]:
    """The learning rates that were tried with the first seed."""
    lines = model_lines(
        facts, lambda model: sorted((one["learning_rate"], 100 * one["dev"]) for one in model["sweep"])
    )
    if not lines:
        return []
    unit = "dev score in points, first seed"
    plot = curves(f"{name}-sweep", "Learning rates tried", unit, lines, x_label="learning rate", log_x=True)
    return [Section(title="Learning rates", plots=(plot,))]


def seed_details(facts: Facts) -> list[Section]:
    """Every fine-tuning."""
    rows = []
    for model in facts["models"]:
        for seed in model["seeds"]:
            stuck = "" if seed["left_chance"] else " (at chance level)"
            rows.append(
                (
                    model["name"],
                    str(seed["seed"]),
                    f"{seed['learning_rate']:.2g}",
                    str(seed["best_epoch"]),
                    str(seed["restarts"]),
                    points(seed["dev"][facts["metric"]]),
                    points(seed["test"][facts["metric"]] if seed["test"] else None) + stuck,
                    number(seed["seconds"]),
                    number(seed["examples_per_second"]),
                )
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
    caption = "The main metric in points. A start that does not leave chance level is given up and counted."
    return [Section(title="Every seed", tables=(Table(caption, head, tuple(rows)),))]
