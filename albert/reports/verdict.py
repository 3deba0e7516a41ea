"""The sentence that opens a report: whether it helped, how much, how surely, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import Comparison, ModelResult, metric_name
from albert.pretraining import PretrainResult
from albert.reports.pretraining import change_of, first_and_last, held_out_corpora, key_of
from albert.reports.sections import change, counted, decimal, decimal_change, gain, number, percent, points


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
        drift = f"; general drift {change(model.drift)}"
    unread = ""
    if difference.left_out:
        n = counted(comparison.examples[comparison.split], "example")
        unread = f", without the {number(difference.left_out)} of {n} that only one of them may have read"
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
    runs = len(model.checkpoints)
    return f"over {seeds}" if runs == 1 else f"by the recipe, over {runs} pretraining runs of {seeds}"


def _drift(pretraining: PretrainResult | None) -> str:
    """How the accuracy on the corpora mixed in changed during pretraining."""
    if pretraining is None:
        return ""
    drifts = []
    for corpus in held_out_corpora(pretraining.history):
        ends = first_and_last(pretraining.history, key_of("held_out_mlm_accuracy", corpus))
        if corpus and ends:
            drifts.append(f"; {corpus} drift {change(ends[1] - ends[0])}")
    return "".join(drifts)


def _of_pretraining(result: PretrainResult) -> str:
    losses, accuracies = (
        first_and_last(result.history, f"held_out_mlm_{name}") or (None, None)
        for name in ("loss", "accuracy")
    )
    shown = " → ".join(decimal(one, 2) for one in losses)
    changed = change_of(result.history, "held_out_mlm_loss")
    if changed and changed.ends and not changed.leaves_out_0:
        ends = (decimal_change(end, 2) for end in changed.ends)
        shown += f" (no clear change: {' to '.join(ends)})"
    return f"Held-out MLM loss {shown}, accuracy {' → '.join(map(percent, accuracies))}{_drift(result)}."
