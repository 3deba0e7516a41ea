"""What a report tells of a comparison of models on a task. The facts are albert.comparison.Comparison as JSON
has it; scores are shares there and points here.
"""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import difference_of, label_of, metric_name, reported
from albert.reports.evaluation_details import (
    changed_details,
    class_details,
    confusion_details,
    seed_details,
    slice_details,
    sweep_details,
)
from albert.reports.evaluation_plots import evaluation_plots
from albert.reports.sections import (
    MISSING,
    Facts,
    Section,
    Strong,
    Table,
    change,
    counted,
    decimal,
    number,
    points,
    size,
    spread,
)

_SURE = ("95% interval", "P(better)", "p value")
_NAMED = 3  # models at most of a warning; of more their number


def evaluation_section(facts: Facts, name: str, title: str) -> Section:
    """The section; `name` makes the ids of its plots unique."""
    tables = (scores_table(facts), steps_table(facts))
    below = (intrinsic_table(facts), cost_table(facts), contamination_table(facts))
    details = (
        *class_details(facts),
        *confusion_details(facts),
        *slice_details(facts),
        *changed_details(facts),
        *sweep_details(facts, name),
        *seed_details(facts),
    )
    return Section(
        title=title,
        notes=(protocol(facts),),
        tables=tuple(table for table in tables if table.rows),
        plots=tuple(evaluation_plots(facts, name)),
        tables_below=tuple(table for table in below if table.rows),
        details=details,
    )


def protocol(facts: Facts) -> str:
    """How it was measured."""
    examples = ", ".join(f"{name} {number(n)}" for name, n in facts["examples"].items())
    seeds = counted(len(facts["seeds"]), "seed")
    trained = any(seed["best_epoch"] for model in facts["models"] for seed in model["seeds"])
    swept = any(model["sweep"] for model in facts["models"])
    chosen = "the learning rate and the best epoch are" if swept else "the best epoch is"
    how = [
        f"{seeds}, the same for every model, as are the order of the examples and the number of steps",
        f"{chosen} chosen on dev" + (", test is scored once" if facts["split"] == "test" else ""),
    ]
    sentences = [
        *([*how, *starts(facts)] if trained else ["scored as the checkpoints are, without training"]),
        f"an answer that knows nothing scores {points(facts['chance'])}",
        f"examples: {examples}",
    ]
    if skipped := facts["skipped"]:
        sentences.append(f"{counted(len(skipped), 'row')} could not be used, first: {skipped[0]}")
    return ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) + "."


def starts(facts: Facts) -> list[str]:
    """How many starts stayed at chance level, where some did."""
    seeds = [seed for model in facts["models"] for seed in model["seeds"]]
    given_up, stuck = sum(seed["restarts"] for seed in seeds), sum(not seed["left_chance"] for seed in seeds)
    said = [f"{counted(given_up, 'start')} at chance level were given up and begun anew"] if given_up else []
    return [*said, f"{number(stuck)} of {counted(len(seeds), 'run')} never left it"] if stuck else said


def scores_table(facts: Facts) -> Table:
    """A row a model: its scores, and how much it gains over the first."""
    main, split = metric_name(facts["metric"]), facts["split"]
    on_test = split == "test"
    head = ["Model", *([f"dev {main}"] if on_test else [])]
    head += [f"{split} {metric_name(metric)}" for metric in facts["metrics"]]
    compared, calibrated = len(facts["models"]) > 1, any(model["calibration"] for model in facts["models"])
    head += ["ECE"] if calibrated else []
    head += [f"change of {main}", *_SURE] if compared else []
    rows = []
    for model in facts["models"]:
        scores = [*([model["dev"][facts["metric"]]] if on_test else [])]
        scores += [reported(model)[metric] for metric in facts["metrics"]]
        row = [label_of(model), *(spread(score) for score in scores)]
        if calibrated:
            row.append(points(model["calibration"]["ece"]) if model["calibration"] else MISSING)
        rows.append((*row, *(_difference_cells(difference_of(facts, model["name"])) if compared else ())))
    caption = "In points, mean ± standard deviation over the seeds."
    if calibrated:
        caption += " ECE is the expected calibration error, the mean of the seeds'."
    if compared:
        caption += (
            f" The change is against {facts['models'][0]['name']}, seed by seed; its interval is "
            "bootstrapped over seeds and examples, p is of the paired t test. Bold: the interval leaves out "
            "zero and p < 0.05."
        )
    return Table(caption, tuple(head), tuple(rows))


def _difference_cells(difference: Facts | None) -> tuple[str, ...]:
    if difference is None:
        return (MISSING,) * 4
    mean = change(difference["mean"])
    return (
        Strong(mean) if difference["is_clear"] else mean,
        interval_text(difference),
        _within(difference["probability"], 0.01, 0.99, 2),
        _within(difference["p_value"], 0.001, 1.0, 3),
    )


def _within(value: float | None, least: float, most: float, places: int) -> str:
    """A probability; beyond what can be told from seeds and resamples, only that it is."""
    if value is not None and value < least:
        return f"< {least}"
    return f"> {most}" if value is not None and value > most else decimal(value, places)


def interval_text(difference: Facts) -> str:
    """The 95% interval in points; a dash for a single seed, of whose spread nothing is known."""
    if difference["low"] is None:
        return MISSING
    return f"{change(difference['low'])} to {change(difference['high'])}"


def steps_table(facts: Facts) -> Table:
    """What each change does by itself: every model against the one before it."""
    rows = tuple((one["model"], *_difference_cells(one)) for one in facts["steps"])
    head = ("One change at a time", f"change of {metric_name(facts['metric'])}", *_SURE)
    caption = (
        "In points, as above: each model against the one before it, from which it differs by what its name "
        f"says; the first against {facts['models'][0]['name']}."
    )
    return Table(caption, head, rows)


def intrinsic_table(facts: Facts) -> Table:
    """What the checkpoints know of language before they are fine-tuned."""
    rows = []
    for model in facts["models"]:
        found = model["intrinsic"] or {}
        cells = [points(found.get(key)) for key in ("domain_mlm_accuracy", "general_mlm_accuracy")]
        cells.append(MISSING if model is facts["models"][0] else change(model["drift"]))
        cells += [points(found.get(key)) for key in ("sop_accuracy", "cloze_accuracy")]
        rows.append((label_of(model), *cells))
    caption = "Before fine-tuning, on texts never trained on and with fixed masks: accuracies in points."
    if any(row[3] != MISSING for row in rows):
        caption += " Drift is the general one's change against the first model."
    if any(row[5] != MISSING for row in rows):
        caption += " Domain words are masked whole, and right where every token is."
    if len({(row[1] == MISSING, row[2] == MISSING) for row in rows}) > 1:
        caption += " A dash: the model has read these texts in other documents, or has another vocabulary."
    head = ("Language model", "domain MLM", "general MLM", "drift", "sentence order", "domain words")
    return _without_empty(Table(caption, head, tuple(rows)))


def cost_table(facts: Facts) -> Table:
    """What the models cost beside what they score."""
    costs = [(label_of(model), model["cost"]) for model in facts["models"] if model["cost"]]
    if not costs:
        return Table("", ("Cost",), ())
    batches = sorted({latency["batch_size"] for _, cost in costs for latency in cost["latency"]})
    rows = []
    for name, cost in costs:
        timed = {one["batch_size"]: f"{one['p50_ms']:.3g} / {one['p95_ms']:.3g}" for one in cost["latency"]}
        rows.append(
            (
                name,
                number(cost["parameters"]),
                f"{cost['flops'] / 1e9:.3g}",
                size(cost["checkpoint_bytes"]),
                *(timed.get(batch, MISSING) for batch in batches),
            )
        )
    first = costs[0][1]
    caption = (
        f"GFLOPs of a forward pass over {first['sequence_length']} tokens; milliseconds of one, median / "
        f"95th percentile, on {first['device']}. Sharing parameters saves memory, not time."
    )
    head = ("Cost", "parameters", "GFLOPs", "weights", *(f"ms, batch {batch}" for batch in batches))
    return Table(caption, head, tuple(rows))


def contamination_table(facts: Facts) -> Table:
    """Which corpora were searched for the task's texts, and what was found."""
    found: dict[tuple[str, int, str], Facts] = {}
    for model in facts["models"]:
        for one in model["contamination"]:
            found[one["corpus"], one["version"], one["split"]] = one
    rows = [
        (
            f"{corpus}, version {version}",
            split,
            number(one["texts"]),
            Strong(number(one["found"])) if one["found"] else "0",
            number(one["documents"]),
            _listed(_readers(facts["models"], corpus, version), facts["models"]),
        )
        for (corpus, version, split), one in found.items()
    ]
    return Table(
        "Texts of the task in the corpora that models were pretrained on.",
        ("Contamination", "split", "texts searched for", "found", "in documents", "read by"),
        tuple(rows),
        words=(0, 1, 5),
    )


def contamination_warnings(evaluations: Sequence[Facts]) -> list[str]:
    """One line for each task and corpus that holds its texts: it belongs to the top of the page."""
    found: dict[tuple[str, str, int], dict[str, str]] = {}
    for facts in evaluations:
        for one in (one for model in facts["models"] for one in model["contamination"] if one["found"]):
            held = f"{number(one['found'])} of {number(one['texts'])} {one['split']} texts"
            found.setdefault((facts["task"], one["corpus"], one["version"]), {})[one["split"]] = held
    lines = []
    for (task, corpus, version), held in found.items():
        models = [model for facts in evaluations if facts["task"] == task for model in facts["models"]]
        names = _readers(models, corpus, version)
        some = _NAMED < len(names) < len(models)
        by = f"{len(names)} of {len(models)} models" if some else _listed(names, models)
        lines.append(
            f"Contaminated: {corpus} version {version} holds {' and '.join(held.values())} of {task}. "
            f"The scores there do not measure what was learnt by {by}."
        )
    return lines


def _readers(models: Sequence[Facts], corpus: str, version: int) -> list[str]:
    """Names of the models that were pretrained on a version of a corpus."""
    return [
        model["name"]
        for model in models
        if any((one["corpus"], one["version"]) == (corpus, version) for one in model["contamination"])
    ]


def _listed(names: Sequence[str], models: Sequence[Facts]) -> str:
    if len(names) == len(models) > 2:
        return "every model"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _without_empty(table: Table) -> Table:
    """Without columns that are missing for every model; without rows when nothing is left."""
    kept = [n for n in range(len(table.columns)) if n == 0 or any(row[n] != MISSING for row in table.rows)]
    if len(kept) == 1:
        return Table(table.caption, table.columns, ())
    rows = tuple(tuple(row[n] for n in kept) for row in table.rows)
    return Table(table.caption, tuple(table.columns[n] for n in kept), rows)
