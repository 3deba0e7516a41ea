"""The sentence that opens a report: whether it helped, how much, how surely, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import Comparison, Difference, metric_name
from albert.pretraining import PretrainResult
from albert.reports.pretraining import first_and_last, held_out_corpora, key_of
from albert.reports.sections import change, counted, decimal, percent, points


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
    model = comparison.subject()
    difference = comparison.difference(model.name)
    assert difference is not None
    is_trained = any(seed.best_epoch for seed in model.seeds)
    over = f"over {counted(len(comparison.seeds), 'seed')}" if is_trained else "without training"
    named = f", {model.name} against {difference.baseline}" if len(comparison.models) > 2 else ""
    if model.drift is not None:
        drift = f"; general drift {change(model.drift)}"
    summary = f"{_gain(difference)} points of {where} {over}{named}{drift}"
    if model.has_read_more(first):
        return f"Not to be trusted, a pretraining corpus holds texts of the task: {summary}."
    return _conclusion(difference, summary)


def _gain(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return change(difference.mean)
    return f"{change(difference.mean)} ± {points((difference.high - difference.low) / 2)}"


def _conclusion(difference: Difference, summary: str) -> str:
    if difference.low is None or difference.high is None:
        return f"{summary}: a single seed says nothing about the spread; give --seeds three or more."
    helped = difference.mean > 0
    if difference.is_clear:
        return f"It {'helped' if helped else 'hurt'}: {summary}."
    if difference.p_value is not None and (difference.low > 0 or difference.high < 0):
        doubt = f"p {difference.p_value:.2f}: more seeds would tell"
        return f"It may have {'helped' if helped else 'hurt'}: {summary} ({doubt})."
    return f"No clear difference: {summary}."


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
    evaluations = result.evaluations()
    losses, accuracies = (
        " → ".join(show(record.get(key)) for record in (evaluations[0], evaluations[-1]))
        for key, show in (
            ("held_out_mlm_loss", lambda loss: decimal(loss, 2)),
            ("held_out_mlm_accuracy", percent),
        )
    )
    return f"Held-out MLM loss {losses}, accuracy {accuracies}{_drift(result)}."
