"""The section on a comparison of models on a task. Records hold shares; the page shows points."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import Comparison, Contamination, Cost, Difference, Intrinsic, ModelResult, metric_name
from albert.reports.evaluation_details import (
    changed_details,
    class_details,
    confusion_details,
    overlap_details,
    seed_details,
    slice_details,
    sweep_details,
)
from albert.reports.evaluation_plots import evaluation_plots
from albert.reports.sections import (
    MISSING,
    Section,
    Strong,
    Table,
    change,
    counted,
    decimal,
    gain,
    number,
    points,
    size,
    spread,
)

_CORRECTED = (
    "p is Student's; but for the primary contrast, named before the run, it is adjusted for the number of "
    "contrasts (Holm 1979). Bold: p < 0.05."
)
_NAMED = 3  # most models that a warning names; of more it gives the number


def evaluation_section(comparison: Comparison, name: str, title: str) -> Section:
    """The section; `name` makes the ids of its plots unique."""
    tables = (scores_table(comparison), steps_table(comparison))
    below = (intrinsic_table(comparison), cost_table(comparison), contamination_table(comparison))
    details = (
        *class_details(comparison),
        *confusion_details(comparison),
        *slice_details(comparison),
        *overlap_details(comparison),
        *changed_details(comparison),
        *sweep_details(comparison, name),
        *seed_details(comparison),
    )
    return Section(
        title=title,
        notes=(protocol(comparison),),
        tables=tuple(table for table in tables if table.rows),
        plots=tuple(evaluation_plots(comparison, name)),
        tables_below=tuple(table for table in below if table.rows),
        details=details,
    )


def protocol(comparison: Comparison) -> str:
    """How the scores were measured."""
    trained = any(seed.best_epoch for model in comparison.models for seed in model.seeds)
    examples = ", ".join(f"{name} {number(n)}" for name, n in comparison.examples.items())
    sentences = [
        *(_training(comparison) if trained else ["scored as the checkpoints are, without training"]),
        f"chance level is {points(comparison.chance)}",
        f"examples: {examples}",
    ]
    if skipped := comparison.skipped:
        sentences.append(f"{counted(len(skipped), 'row')} could not be used, first: {skipped[0]}")
    if comparison.dropped:
        sentences.append(
            f"{counted(comparison.dropped, 'training example')} of dev or test left out of train"
        )
    return ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) + "."


def _training(comparison: Comparison) -> list[str]:
    seeds = counted(len(comparison.seeds), "seed")
    swept = any(model.sweep for model in comparison.models)
    chosen = "the learning rate and the best epoch are" if swept else "the best epoch is"
    once = ", test is scored once" if comparison.split == "test" else ""
    return [
        f"{seeds}, the same for every model, as are the order of the examples and the most epochs",
        *_scope(comparison),
        f"{chosen} chosen on dev{once}",
        *_unfinished(comparison),
        *_starts(comparison),
    ]


def _unfinished(comparison: Comparison) -> list[str]:
    """With how many seeds models were still improving when training ended."""
    last = {
        model.name: sum(seed.best_epoch == len(seed.curve) > 0 for seed in model.seeds)
        for model in comparison.models
    }
    named = ", ".join(f"{counted(times, 'seed')} of {name}" for name, times in last.items() if times)
    return [f"the last epoch was the best for {named}: more --epochs may raise the scores"] if named else []


def _scope(comparison: Comparison) -> list[str]:
    """What the intervals are about, and which contrast counts."""
    several = [model for model in comparison.models if len(model.checkpoints) > 1]
    lines = [f"{len(model.checkpoints)} pretraining runs of {model.name}" for model in several]
    if not several:
        lines.append("one pretraining run a model: intervals are of these checkpoints, not of their recipes")
    if comparison.groups:
        lines.append(f"{counted(len(set(comparison.groups)), 'group')} of examples are taken whole")
    if len(comparison.models) > 2:
        lines.append(f"the primary contrast is {comparison.primary} against {comparison.models[0].name}")
    return lines


def _starts(comparison: Comparison) -> list[str]:
    """How many starts stayed at chance level, if any did."""
    seeds = [seed for model in comparison.models for seed in model.seeds]
    restarts = sum(seed.restarts for seed in seeds)
    stuck = sum(not seed.left_chance for seed in seeds)
    lines = [f"{counted(restarts, 'start')} at chance level were abandoned and restarted"] if restarts else []
    if stuck:
        lines.append(f"{number(stuck)} of {counted(len(seeds), 'run')} never left it")
    return lines


def scores_table(comparison: Comparison) -> Table:
    """A row for each model: its scores, and how much it gains over the first."""
    models, metric, split = comparison.models, comparison.metric, comparison.split
    compared, calibrated = len(models) > 1, any(model.calibration for model in models)
    head = ["Model", *([f"dev {metric_name(metric)}"] if split == "test" else [])]
    head += [f"{split} {metric_name(name)}" for name in comparison.metrics]
    head += ["ECE"] if calibrated else []
    head += [f"change of {metric_name(metric)}", "p"] if compared else []
    rows = []
    for model in models:
        scores = [*([model.dev[metric]] if split == "test" else [])]
        scores += [model.reported[name] for name in comparison.metrics]
        row = [model.label, *(spread(score) for score in scores)]
        if calibrated:
            row.append(points(model.calibration.ece) if model.calibration else MISSING)
        rows.append((*row, *(_difference_cells(comparison.difference(model.name)) if compared else ())))
    rows += _baseline_rows(comparison, len(head))
    caption = "In points; after ± is half the width of the 95% interval, over seeds and examples."
    if calibrated:
        caption += " ECE is the expected calibration error, the mean of the seeds'."
    if compared:
        caption += f" The change is against {models[0].name}. {_CORRECTED}"
    return Table(caption, tuple(head), tuple(rows))


def _baseline_rows(comparison: Comparison, width: int) -> list[tuple[str, ...]]:
    """The scores of simple methods and of random weights."""
    rows = []
    for one in comparison.baselines:
        scores = [one.dev[comparison.metric]] if comparison.split == "test" else []
        scores += [one.reported[name] for name in comparison.metrics]
        row = [f"baseline: {one.name}", *(spread(score) for score in scores)]
        rows.append((*row, *[MISSING] * (width - len(row))))
    return rows


def baseline_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """A line for the top of the page for each baseline that some models score less than."""
    lines = []
    for comparison in evaluations:
        metric, models = comparison.metric, comparison.models
        for one in comparison.baselines:
            mean = one.reported[metric].mean
            below = [model.name for model in models if model.reported[metric].mean < mean]
            if below:
                some = _NAMED < len(below) < len(models)
                names = f"{len(below)} of {len(models)} models" if some else _listed(below, models)
                where = f"{metric_name(metric)} on {comparison.task} {comparison.split}"
                lines.append(f"Below a baseline in {where}: {names}, against {points(mean)} of {one.name}.")
    return lines


def _difference_cells(difference: Difference | None) -> tuple[str, ...]:
    if difference is None:
        return (MISSING,) * 2
    mean = gain(difference)
    p_value = difference.adjusted_p
    return (
        Strong(mean) if difference.is_clear else mean,
        "< 0.001" if p_value is not None and p_value < 0.001 else decimal(p_value),
    )


def steps_table(comparison: Comparison) -> Table:
    """What each change does by itself: every model against the one before it."""
    rows = tuple((step.model, *_difference_cells(step)) for step in comparison.steps)
    head = ("One change at a time", f"change of {metric_name(comparison.metric)}", "p")
    caption = (
        "As above: each model against the one before it, from which it differs as its name says; the first "
        f"against {comparison.models[0].name}."
    )
    return Table(caption, head, rows)


def intrinsic_table(comparison: Comparison) -> Table:
    """What the checkpoints know of language before they are fine-tuned."""
    rows = []
    for model in comparison.models:
        known = model.intrinsic or Intrinsic()
        rows.append(
            (
                model.label,
                points(known.domain_mlm_accuracy),
                points(known.general_mlm_accuracy),
                MISSING if model is comparison.models[0] else change(model.drift),
                points(known.sop_accuracy),
                points(known.cloze_accuracy),
            )
        )
    caption = "Before fine-tuning, on texts never trained on and with fixed masks: accuracies in points."
    if any(row[3] != MISSING for row in rows):
        caption += " Drift is the general one's change against the first model."
    if any(row[5] != MISSING for row in rows):
        caption += " Domain words are masked whole, and count as right if every token is."
    if len({(row[1] == MISSING, row[2] == MISSING) for row in rows}) > 1:
        caption += " A dash: the model has read these texts in other documents, or has another vocabulary."
    head = ("Language model", "domain MLM", "general MLM", "drift", "sentence order", "domain words")
    return _without_empty(Table(caption, head, tuple(rows)))


def cost_table(comparison: Comparison) -> Table:
    """What the models cost."""
    costs = [(model.label, model.cost) for model in comparison.models if model.cost]
    if not costs:
        return Table("", ("Cost",), ())
    batches = sorted({latency.batch_size for _, cost in costs for latency in cost.latency})
    first = costs[0][1]
    caption = (
        f"GFLOPs of a forward pass over {first.sequence_length} tokens; milliseconds of one, median / "
        f"95th percentile, on {first.device}. Sharing parameters saves memory, not time."
    )
    head = ("Cost", "parameters", "GFLOPs", "weights", *(f"ms, batch {batch}" for batch in batches))
    return Table(caption, head, tuple(_cost_row(name, cost, batches) for name, cost in costs))


def _cost_row(name: str, cost: Cost, batches: Sequence[int]) -> tuple[str, ...]:
    times = {one.batch_size: f"{one.p50_ms:.3g} / {one.p95_ms:.3g}" for one in cost.latency}
    return (
        name,
        number(cost.parameters),
        f"{cost.flops / 1e9:.3g}",
        size(cost.checkpoint_bytes),
        *(times.get(batch, MISSING) for batch in batches),
    )


def contamination_table(comparison: Comparison) -> Table:
    """Which corpora were searched for the task's texts, and how many they hold."""
    models = comparison.models
    searches = {(one.corpus, one.version, one.split): one for model in models for one in model.contamination}
    rows = tuple(
        (
            f"{one.corpus}, version {one.version}",
            one.split,
            number(one.texts),
            number(one.found),
            number(one.documents),
            _listed(_readers(models, one), models),
        )
        for one in searches.values()
    )
    head = ("Contamination", "split", "texts searched for", "found", "in documents", "read by")
    return Table(
        "Texts of the task in the corpora that models were pretrained on.", head, rows, words=(0, 1, 5)
    )


def contamination_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """A line for the top of the page for each task and each corpus that holds its texts."""
    leaks: dict[tuple[str, str, int], dict[str, Contamination]] = {}
    for comparison in evaluations:
        for one in (one for model in comparison.models for one in model.contamination if one.found):
            leaks.setdefault((comparison.task, one.corpus, one.version), {})[one.split] = one
    lines = []
    for (task, corpus, version), splits in leaks.items():
        held = (f"{number(one.found)} of {number(one.texts)} {one.split} texts" for one in splits.values())
        models = [
            model for comparison in evaluations if comparison.task == task for model in comparison.models
        ]
        names = _readers(models, next(iter(splits.values())))
        some = _NAMED < len(names) < len(models)
        readers = f"{len(names)} of {len(models)} models" if some else _listed(names, models)
        lines.append(
            f"Contaminated: {corpus} version {version} holds {' and '.join(held)} of {task}. "
            f"The scores there do not measure what was learnt by {readers}."
        )
    return lines


def overlap_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """A line for the top of the page for each task whose dev or test was trained on."""
    lines = {}
    for comparison in evaluations:
        held = [one for one in comparison.overlaps if one.earlier == "train"]
        if held and not comparison.dropped:
            lines[comparison.task] = (
                f"Overlap: {' and '.join(one.describe() for one in held)}, which makes the scores on "
                f"{comparison.task} too good. --drop-overlap leaves them out of train."
            )
    return list(lines.values())


def _readers(models: Sequence[ModelResult], leak: Contamination) -> list[str]:
    """The names of the models that were pretrained on the version of the corpus."""
    read = (leak.corpus, leak.version)
    return [m.name for m in models if any((one.corpus, one.version) == read for one in m.contamination)]


def _listed(names: Sequence[str], models: Sequence[ModelResult]) -> str:
    if len(names) == len(models) > 2:
        return "every model"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _without_empty(table: Table) -> Table:
    """Drop the columns that are missing for every model, and the rows if no other column is left."""
    columns = range(len(table.columns))
    filled = [n for n in columns if n == 0 or any(row[n] != MISSING for row in table.rows)]
    if len(filled) == 1:
        return Table(table.caption, table.columns, ())
    rows = tuple(tuple(row[n] for n in filled) for row in table.rows)
    return Table(table.caption, tuple(table.columns[n] for n in filled), rows)
