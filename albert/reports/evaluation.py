"""The section on a comparison of models on a task. Records hold shares; the page shows points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from albert.evaluation import (
    Comparison,
    Contamination,
    Difference,
    Intrinsic,
    ModelResult,
    metric_name,
    over_baseline,
)
from albert.reports.evaluation_details import evaluation_details
from albert.reports.evaluation_plots import evaluation_plots
from albert.reports.sections import (
    MISSING,
    Section,
    Strong,
    Table,
    capitalised,
    change,
    counted,
    decimal,
    gain,
    number,
    plus_minus,
    points,
    size,
    spread,
    without,
)
from albert.tasks import Kind

_CORRECTED = (
    "p is from Student's t, adjusted for the number of contrasts (Holm 1979) but for a primary one, named "
    "before the run. Bold: p < 0.05."
)
_MUCH_OVERLAP = 0.1  # of the test examples are in dev
_MOSTLY = 0.75  # of the examples have one label
_NAMED = 3  # most models that a warning names; of more it gives the number


def evaluation_section(comparison: Comparison, title: str) -> Section:
    return Section(
        title=title,
        notes=(protocol(comparison),),
        tables=(scores_table(comparison), steps_table(comparison)),
        plots=tuple(evaluation_plots(comparison)),
        tables_below=(intrinsic_table(comparison), cost_table(comparison), contamination_table(comparison)),
        details=evaluation_details(comparison),
    )


def protocol(comparison: Comparison) -> str:
    """How the scores were measured."""
    trained = any(seed.best_epoch for model in comparison.models for seed in model.seeds)
    examples = ", ".join(f"{name} {number(n)}" for name, n in comparison.examples.items())
    chance = f"chance level on {comparison.split} is {points(comparison.chance)}"
    if comparison.metric == "accuracy" and comparison.labels and comparison.chance > _MOSTLY:
        chance += ", by one label for all; metric: macro_f1 in a task file counts every label alike"
    sentences = [
        *(_training(comparison) if trained else ["scored as the checkpoints are, without training"]),
        *_scope(comparison),
        chance,
        f"examples: {examples}",
    ]
    if skipped := comparison.skipped:
        sentences.append(f"{counted(len(skipped), 'row')} could not be used, first: {skipped[0]}")
    sentences.extend(comparison.notes)
    if comparison.dropped:
        sentences.append(
            f"{counted(comparison.dropped, 'training example')} of dev or test left out of train"
        )
    return ". ".join(map(capitalised, sentences)) + "."


def _training(comparison: Comparison) -> Iterator[str]:
    models = comparison.models
    seeds = counted(len(comparison.seeds), "seed")
    yield f"{seeds}; every model has the same seeds, order of examples and maximum number of epochs"
    yield "scores are for these training examples; others may move them by more than an interval says"
    swept = any(model.sweep for model in models)
    chosen = "the learning rate and the best epoch are" if swept else "the best epoch is"
    on_test = comparison.split == "test"
    yield f"{chosen} chosen on dev, " + (
        "test is scored once" if on_test else "which is scored too: that makes the scores optimistic"
    )
    last = {model.name: sum(one.best_epoch == len(one.curve) > 0 for one in model.seeds) for model in models}
    if improving := ", ".join(f"{counted(times, 'run')} of {name}" for name, times in last.items() if times):
        yield f"the last epoch was the best for {improving}: more epochs may raise the scores"
    runs = [seed for model in models for seed in model.seeds]
    if restarts := sum(run.restarts for run in runs):
        were = "was" if restarts == 1 else "were"
        yield f"{counted(restarts, 'start')} at chance level {were} abandoned and restarted"
    arms = [(one.name, one.seeds) for one in models]
    arms += [(f"the baseline {one.name}", one.seeds) for one in comparison.baselines]
    stuck = [(name, sum(not run.left_chance for run in seeds), len(seeds)) for name, seeds in arms]
    if stayed := ", ".join(f"{n} of {of} of {name}" for name, n, of in stuck if n):
        yield f"runs that stayed at chance level: {stayed}"


def _scope(comparison: Comparison) -> Iterator[str]:
    """What the intervals are about, and which contrast counts."""
    several = [model for model in comparison.models if len(model.checkpoints) > 1]
    yield from (f"{len(model.checkpoints)} pretraining runs of {model.name}" for model in several)
    if not several:
        yield "one pretraining run per model: intervals are of these checkpoints, not of their recipes"
    if comparison.groups:
        yield f"{counted(len(set(comparison.groups)), 'group')} of examples are taken whole"
    if len(comparison.models) > 2 and comparison.primary:
        yield f"the primary contrast is {comparison.primary} against {comparison.models[0].name}"
    yield from _what_would_help(comparison)


def _what_would_help(comparison: Comparison) -> Iterator[str]:
    """Say how far more seeds, or pretraining runs, could narrow the interval of an unclear change."""
    first, subject = comparison.models[0], comparison.subject
    primary = comparison.difference(subject.name)
    if primary is None or primary.is_clear or primary.least_half_width is None or subject.is_fixed:
        return
    units = "pretraining runs" if max(len(one.checkpoints) for one in (first, subject)) > 1 else "seeds"
    now, left = points(primary.half_width), points(primary.least_half_width)
    if primary.half_width and primary.least_half_width < primary.half_width / 2:
        yield f"the ± {now} of the primary change is mostly due to the {units}: more of them would narrow it"
    else:
        yield (
            f"of the ± {now} of the primary change about ± {left} would remain with any number of {units}: "
            f"only more examples of {comparison.split} narrow that"
        )


def scores_table(comparison: Comparison) -> Table:
    """A row for each model and baseline: its scores, and how much a model gains over the first."""
    records = [
        {
            "Model": model.label,
            **_scores(comparison, model),
            "ECE": points(model.calibration.ece if model.calibration else None),
            **_difference_cells(comparison, comparison.difference(model.name)),
        }
        for model in comparison.models
    ]
    records += [
        {"Model": f"baseline: {one.name}", **_scores(comparison, one)} for one in comparison.baselines
    ]
    caption = "In points; ± is half the width of the 95% interval, over seeds and examples."
    if any(model.calibration for model in comparison.models):
        caption += " ECE: expected calibration error, averaged over seeds."
    if comparison.differences:
        caption += f" Changes are relative to {comparison.models[0].name}. {_CORRECTED}"
    if unknown := dict.fromkeys(one.unknown for one in comparison.differences if one.unknown):
        caption += f" No interval of a change: {'; '.join(unknown)}."
    if any(one.left_out for one in comparison.differences):
        caption += " Changes are on the examples that neither model alone may have read (see Contamination)."
    return Table.of(caption, records)


def _scores(comparison: Comparison, model: ModelResult) -> dict[str, str]:
    main, split = comparison.metric, comparison.split
    on_dev = {f"dev {metric_name(main)}": spread(model.dev[main])} if split == "test" else {}
    reported = {f"{split} {metric_name(name)}": spread(model.reported[name]) for name in comparison.metrics}
    return on_dev | reported


def _difference_cells(comparison: Comparison, difference: Difference | None) -> dict[str, str]:
    if difference is None:
        return {}
    shown, p_value = gain(difference), difference.adjusted_p
    p_shown = "< 0.001" if p_value is not None and p_value < 0.001 else decimal(p_value)
    if difference.is_clear:
        shown, p_shown = Strong(shown), p_shown.replace("0.050", "< 0.05")
    return {f"change of {metric_name(comparison.metric)}": shown, "p": p_shown}


def evaluation_warnings(evaluations: Sequence[Comparison]) -> tuple[str, ...]:
    """Return a line for the top of the page for each reason to doubt the scores."""
    kinds = (_baseline_warnings, _contamination_warnings, _overlap_warnings)
    lines = (line for warnings_of in kinds for line in warnings_of(evaluations))
    return tuple(dict.fromkeys(lines))  # two comparisons on a task may give the same


def _baseline_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """Lines for each baseline that some models score less than, or not clearly more."""
    lines: list[str] = []
    for comparison in evaluations:
        where = f"a baseline in {metric_name(comparison.metric)} on {comparison.task} {comparison.split}"
        for one in comparison.baselines:
            named: dict[str, list[str]] = {"Below": [], "Not clearly above": []}
            for gained in over_baseline(comparison, one):
                is_clear = gained.half_width is not None and abs(gained.mean) > gained.half_width
                if is_clear and gained.mean > 0:
                    continue
                unread = without(gained, comparison.examples[comparison.split])
                what = "Below" if is_clear else "Not clearly above"
                named[what].append(f"{gained.model} ({gain(gained)}{unread})")
            has = points(one.reported[comparison.metric].mean)
            lines.extend(
                f"{what} {where}: {_few(names, comparison.models)}. The baseline, {one.name}, has {has}."
                for what, names in named.items()
                if names
            )
    return lines


def steps_table(comparison: Comparison) -> Table:
    """Compare every model with the one before it, to show each change by itself."""
    caption = (
        "As above: each model against the one before it, from which it differs as its name says; the first "
        f"against {comparison.models[0].name}."
    )
    steps = comparison.steps
    rows = [{"One change at a time": one.model, **_difference_cells(comparison, one)} for one in steps]
    return Table.of(caption, rows)


def intrinsic_table(comparison: Comparison) -> Table:
    """Show what the checkpoints know before fine-tuning, without columns that no model has."""
    first, *_ = comparison.models
    records = [
        {
            "Language model": model.label,
            "domain MLM": points(measured.domain_mlm_accuracy),
            "general MLM": points(measured.general_mlm_accuracy),
            "drift": MISSING if model is first else plus_minus(change(model.drift), model.drift_half_width),
            "sentence order": points(measured.sop_accuracy),
            "domain words": points(measured.cloze_accuracy),
        }
        for model in comparison.models
        for measured in [model.intrinsic or Intrinsic()]
    ]
    table = Table.of("", records)
    if len(table.columns) == 1:
        return Table.of("", ())
    caption = "Before fine-tuning, on held-out texts with fixed masks: accuracies in points. "
    caption += "What a checkpoint from elsewhere has read of these is not known."
    if any(len(model.checkpoints) > 1 for model in comparison.models):
        caption += " Of several pretraining runs the first is measured."
    if "drift" in table.columns:
        caption += " Drift is the general one's change against the first model."
    if "domain words" in table.columns:
        caption += " Domain words are masked whole, and count as right if every token is."
    if len({(one["domain MLM"] == MISSING, one["general MLM"] == MISSING) for one in records}) > 1:
        caption += " A dash: the model has read these texts in other documents, or cannot be measured."
    return replace(table, caption=caption)


def cost_table(comparison: Comparison) -> Table:
    costs = {model.label: model.cost for model in comparison.models if model.cost}
    if not costs:
        return Table.of("", ())
    first, *_ = costs.values()
    caption = (
        "GFLOPs of a forward pass over a text of mean length, in tokens; milliseconds of one, median / 95th "
        f"percentile, on {first.device}, model after model: differences between models of one shape are "
        "noise. Sharing parameters saves memory, not time."
    )
    records = [
        {
            "Cost": label,
            "parameters": number(cost.parameters),
            "mean length": f"{cost.sequence_length:.1f}",
            "GFLOPs": f"{cost.flops / 1e9:.3g}",
            "weights": size(cost.checkpoint_bytes),
            **{
                f"ms, batch {one.batch_size}": f"{_ms(one.p50_ms)} / {_ms(one.p95_ms)}"
                for one in cost.latency
            },
        }
        for label, cost in costs.items()
    ]
    return Table.of(caption, records)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def contamination_table(comparison: Comparison) -> Table:
    """Which corpora were searched for the task's texts, and for how many something was found."""
    models = comparison.models
    searches = {(one.corpus, one.version, one.split): one for model in models for one in model.contamination}
    records = [
        {
            "Contamination": f"{one.corpus}, version {one.version}",
            "split": one.split,
            "texts searched for": number(one.texts),
            "found": number(one.found),
            "by": _in_common(one),
            "in documents": number(one.documents),
            "read by": _listed(_readers(models, one), models),
        }
        for one in searches.values()
    ]
    caption = "Texts of the task in a corpus that models were pretrained on, by what both have in common."
    return Table.of(caption, records, words=("Contamination", "split", "by", "read by"))


def _in_common(one: Contamination) -> str:
    """By how much of a text it counts as found: the guard's rule (see data.cleaning.guard)."""
    return f"{one.share:.0%} of their runs of 13 letters" if one.share else "13 letters (shorter ones all)"


def _contamination_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """A line for each task and each corpus that has something in common with its texts."""
    leaks: dict[tuple[str, str, int], dict[str, Contamination]] = {}
    for comparison in evaluations:
        for one in (one for model in comparison.models for one in model.contamination if one.found):
            leaks.setdefault((comparison.task, one.corpus, one.version), {})[one.split] = one
    lines = []
    for (task, corpus, version), splits in leaks.items():
        found = (f"{number(one.found)} of {number(one.texts)} {one.split} texts" for one in splits.values())
        of_task = (model for one in evaluations if one.task == task for model in one.models)
        models = [*{model.name: model for model in of_task}.values()]
        any_split = next(iter(splits.values()))
        readers = _few(_readers(models, any_split), models)
        lines.append(
            f"Contamination: {' and '.join(found)} of {task} have {_in_common(any_split)} in common with "
            f"{corpus} version {version}, which may be a set phrase or the text. "
            f"The scores of {readers} on {task} may be inflated by that."
        )
    return lines


def _overlap_warnings(evaluations: Sequence[Comparison]) -> list[str]:
    """A line for each task whose dev or test was trained on."""
    lines = {}
    for comparison in (one for one in evaluations if one.kind != Kind.SIMILARITY):  # which trains nothing
        for one in comparison.overlaps:
            share = (one.identical + one.near) / one.examples
            if (one.split, one.earlier) == ("test", "dev") and share > _MUCH_OVERLAP:
                lines[f"{comparison.task} dev"] = (
                    f"Overlap: {one.describe()}, which chose the epoch: the scores on {comparison.task} "
                    "may be too good."
                )
        held = [one for one in comparison.overlaps if one.earlier == "train"]
        if held and not comparison.dropped:
            lines[comparison.task] = (
                f"Overlap: {' and '.join(one.describe() for one in held)}, so the scores on "
                f"{comparison.task} may be too good. The option drop-overlap leaves them out of train."
            )
    return list(lines.values())


def _readers(models: Sequence[ModelResult], leak: Contamination) -> list[str]:
    """The names of the models that were pretrained on the version of the corpus."""
    read = (leak.corpus, leak.version)
    return [m.name for m in models if any((one.corpus, one.version) == read for one in m.contamination)]


def _few(names: Sequence[str], models: Sequence[ModelResult]) -> str:
    """List a few names; of many say how many."""
    is_some = _NAMED < len(names) < len(models)
    return f"{len(names)} of {len(models)} models" if is_some else _listed(names, models)


def _listed(names: Sequence[str], models: Sequence[ModelResult]) -> str:
    if len(names) == len(models) > 2:
        return "every model"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
