"""The sentence that opens a report: whether it helped, how much, how surely, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import Comparison, ModelResult, metric_name
from albert.pretraining import PretrainResult
from albert.reports.pretraining import Measured, Show, held_out_figures
from albert.reports.sections import change, counted, decimal, decimal_change, gain, percent, points, without


def verdict(pretraining: PretrainResult | None, evaluations: Sequence[Comparison]) -> str:
    """A line for each evaluation; else one for the pretraining; else that nothing was trained."""
    if evaluations:
        drift = _drift(pretraining)
        return "\n".join(_of_evaluation(comparison, drift) for comparison in evaluations)
    return _of_pretraining(pretraining) if pretraining else "Corpus only: nothing was trained."


def _of_evaluation(comparison: Comparison, drift: str) -> str:
    where = f"{metric_name(comparison.metric)} on {comparison.task} {comparison.split}"
    first = comparison.models[0]
    if not comparison.differences:
        score = first.reported[comparison.metric]
        return f"{points(score.mean)} points of {where}; nothing to compare with."
    model, difference = comparison.subject, comparison.difference(comparison.subject.name)
    assert difference is not None
    named = f", {model.name} against {difference.baseline}" if len(comparison.models) > 2 else ""
    if model.drift is not None:
        half = model.drift_half_width
        ends = None if half is None else (model.drift - half, model.drift + half)
        of_run = " of its first run" if len(model.checkpoints) > 1 else ""
        drift = f"; general drift{of_run} {change(model.drift)}{_doubt(Measured(model.drift, ends), change)}"
    unread = without(difference, comparison.examples[comparison.split])
    summary = f"{gain(difference)} points of {where} {_over(comparison, model)}{named}{unread}{drift}"
    if difference.unknown:
        return f"Cannot tell: {summary} ({difference.unknown})."
    if not difference.is_clear:
        return f"No clear difference: {summary}."
    return f"It {'helped' if difference.mean > 0 else 'hurt'}: {summary}."


def _over(comparison: Comparison, model: ModelResult) -> str:
    """Say what the difference varies over; only several pretraining runs speak of their recipe."""
    if model.is_fixed:
        return "without training"
    seeds = counted(len(comparison.seeds), "seed")
    theirs, runs = (len(one.checkpoints) for one in (comparison.models[0], model))
    if runs == 1:
        return f"over {seeds}" + (f", against {theirs} pretraining runs" if theirs > 1 else "")
    of_seeds = f" of {seeds}" if any(seed.best_epoch for seed in model.seeds) else ""
    return f"by the recipe, over {runs} pretraining runs{of_seeds}"


def _drift(pretraining: PretrainResult | None) -> str:
    """How the accuracy on the corpora mixed in changed during pretraining."""
    return "".join(
        f"; {one.corpus} drift {change(one.change.value)}{_doubt(one.change, change)}"
        for one in held_out_figures(pretraining.history if pretraining else ())
        if one.corpus and one.metric == "mlm_accuracy"
    )


def _of_pretraining(result: PretrainResult) -> str:
    own = {one.metric: one for one in held_out_figures(result.history) if not one.corpus}
    if not own:
        return "Nothing was measured on held-out documents."
    loss, accuracy = own["mlm_loss"], own["mlm_accuracy"]
    losses = f"{decimal(loss.before.value, 2)} → {decimal(loss.after.value, 2)}"
    losses += _doubt(loss.change, lambda end: decimal_change(end, 2))
    accuracies = f"{percent(accuracy.before.value)} → {percent(accuracy.after.value)}"
    accuracies += _doubt(accuracy.change, change)
    return f"Held-out MLM loss {losses}, accuracy {accuracies}{_drift(result)}."


def _doubt(changed: Measured, show: Show) -> str:
    """The interval of a change, if it holds 0."""
    if changed.ends is None or changed.leaves_out_0:
        return ""
    return f" (no clear change: {' to '.join(map(show, changed.ends))})"
