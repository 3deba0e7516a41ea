"""The folded parts of an evaluation: classes, slices, examples, learning rates, seeds."""

from __future__ import annotations

from collections.abc import Iterator

from albert.evaluation import ChangedExample, Changes, Comparison
from albert.reports.sections import MISSING, Passage, Section, Table, change, counted, number, points, spread

_MOST_CONFUSIONS = 20


def evaluation_details(comparison: Comparison) -> tuple[Section, ...]:
    return (
        _classes(comparison),
        _confusion(comparison),
        _slices(comparison),
        *_overlaps(comparison),
        *_changes(comparison),
        _sweep(comparison),
        _seeds(comparison),
    )


def _classes(comparison: Comparison) -> Section:
    """Precision, recall and F1 of each label, the models side by side; of many models F1 alone."""
    models = [model for model in comparison.models if model.classes]
    parts = ("precision", "recall", "F1") if len(models) <= 2 else ("F1",)
    by_label = [{score.label: score for score in model.classes} for model in models]
    records = []
    for label in dict.fromkeys(label for scores in by_label for label in scores):
        scores = [of_model.get(label) for of_model in by_label]
        support = next(score.support for score in scores if score)
        record = {"Label": label, "examples": number(support)}
        for model, score in zip(models, scores, strict=True):
            record |= {f"{model.name} {p}": points(getattr(score, p.lower(), None)) for p in parts}
        if len(models) == 2:
            first, last = scores
            record["change of F1"] = change(last.f1 - first.f1) if first and last else MISSING
        records.append(record)
    return Section(title="Every class", tables=(Table.of("In points, over all runs.", records),))


def _confusion(comparison: Comparison) -> Section:
    """The most frequent confusions of the first model and of the one that the verdict is about."""
    labels, shown, tables = comparison.labels, (comparison.models[0].name, comparison.subject.name), []
    for model in comparison.models:
        if model.name not in shown or model.confusion is None:
            continue
        wrong = [
            (count, gold, said)
            for gold, row in zip(labels, model.confusion, strict=True)
            for said, count in zip(labels, row, strict=True)
            if count and said != gold
        ]
        rows = [(gold, said, number(n)) for n, gold, said in sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]]
        caption = f"The most frequent confusions of {model.name}, over {counted(len(model.seeds), 'run')}"
        tables.append(Table(caption, ("Gold", "predicted", "times"), tuple(rows), words=(0, 1)))
    return Section(title="Confusion", tables=tuple(tables))


def _slices(comparison: Comparison) -> Section:
    """The main metric by the length of the examples and the domain words in them."""
    models = [model for model in comparison.models if model.slices]
    records = []
    for parts in zip(*(model.slices for model in models), strict=True):
        part = parts[0]
        end = "and more" if part.high is None else f"to {part.high}"
        name = f"{part.by} {part.low}" + ("" if part.high == part.low else f" {end}")
        scores = {model.name: spread(one.score) for model, one in zip(models, parts, strict=True)}
        records.append({"Examples by": name, "examples": number(part.examples), **scores})
    caption = (
        "The main metric in points, mean ± half its 95% interval; lengths in tokens read, of all sequences."
    )
    table = Table.of(caption, records)
    return Section(title="By length and content", tables=(table,))


def _overlaps(comparison: Comparison) -> list[Section]:
    """Examples of a split that an earlier split has too."""
    return [
        Section(
            title=one.describe(),
            passages=tuple(Passage(text, f"in {one.earlier}: {earlier}") for text, earlier in one.shown),
        )
        for one in comparison.overlaps
    ]


def _changes(comparison: Comparison) -> Iterator[Section]:
    """Yield the examples that most seeds get right with one model and wrong with the other."""
    for one in comparison.changes:
        for verb, count, examples in (
            ("fixed", one.fixed, one.fixed_examples),
            ("broken", one.broken, one.broken_examples),
        ):
            yield Section(
                title=f"{counted(count, 'example')} {verb} by {one.model}",
                passages=tuple(
                    Passage(example.text, _change_of(example, one, comparison)) for example in examples
                ),
            )


def _change_of(example: ChangedExample, changes: Changes, comparison: Comparison) -> str:
    lines = [f"example {example.number}, gold {example.gold}"]
    for name, said, right in (
        (changes.baseline, example.baseline, example.baseline_right),
        (changes.model, example.model, example.model_right),
    ):
        runs = counted(len(comparison.model(name).seeds), "run")  # of a recipe more than seeds
        lines.append(f"{name}: {said}, right in {number(right)} of {runs}")
    return "\n".join(lines)


def _sweep(comparison: Comparison) -> Section:
    records = [
        {"Model": model.name} | {f"{tried.learning_rate:g}": points(tried.dev) for tried in model.sweep}
        for model in comparison.models
        if model.sweep
    ]
    caption = "Dev scores in points of the learning rates that were tried with the first seed."
    return Section(title="Learning rates", tables=(Table.of(caption, records),))


def _seeds(comparison: Comparison) -> Section:
    metric = comparison.metric
    records = [
        {
            "Model": f"{model.name}, run {run}" if run else model.name,
            "seed": str(seed.seed),
            "learning rate": f"{seed.learning_rate:.2g}" if seed.best_epoch else MISSING,
            "best epoch": number(seed.best_epoch or None),
            "restarts": str(seed.restarts),
            "dev": points(seed.dev[metric]),
            "test": points(seed.test[metric] if seed.test else None),
            "left chance": "yes" if seed.left_chance else "no",
            "seconds": number(seed.seconds),
            "examples/s": number(seed.examples_per_second or None),
        }
        for model in comparison.models
        for run, seed in model.numbered_runs
    ]
    caption = (
        "The main metric in points. A run left chance level if its score is two standard errors above it, on "
        "test if there is one. A start that does not on dev is counted and repeated. Seconds are "
        "of everything, examples/s of training alone."
    )
    return Section(title="Every seed", tables=(Table.of(caption, records),))
