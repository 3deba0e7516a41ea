"""The one sentence that a report begins with: did it help, by how much, how sure, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from albert.evaluation import difference_of, has_read_more, metric_name, reported, subject
from albert.reports.pretraining import first_and_last, held_out_corpora, key_of
from albert.reports.sections import Facts, change, counted, decimal, percent, points


def verdict(pretraining: Facts | None, evaluations: Sequence[Facts]) -> str:
    """A line for each evaluation; else one of the pretraining; else that nothing was trained."""
    if evaluations:
        drift = _drift(pretraining)
        return "\n".join(_of_evaluation(one, drift) for one in evaluations)
    return _of_pretraining(pretraining) if pretraining else "Corpus only: nothing was trained."


def _of_evaluation(facts: Facts, drift: str) -> str:
    where = f"{metric_name(facts['metric'])} on {facts['task']} {facts['split']}"
    if not facts["differences"]:
        score = reported(facts["models"][0])[facts["metric"]]
        return f"{points(score['mean'])} points of {where}; nothing to compare with."
    model = subject(facts)
    difference = difference_of(facts, model["name"])
    is_trained = any(seed["best_epoch"] for seed in model["seeds"])
    over = f"over {counted(len(facts['seeds']), 'seed')}" if is_trained else "without training"
    named = f", {model['name']} against {difference['baseline']}" if len(facts["models"]) > 2 else ""
    if model["drift"] is not None:
        drift = f"; general drift {change(model['drift'])}"
    alone = difference["low"] is None
    half = "" if alone else f" ± {points((difference['high'] - difference['low']) / 2)}"
    said = f"{change(difference['mean'])}{half} points of {where} {over}{named}{drift}"
    if has_read_more(model, facts["models"][0]):
        return f"Not to be trusted, a pretraining corpus holds texts of the task: {said}."
    if alone:
        return f"{said}: a single seed says nothing of the spread; give --seeds three or more."
    helped = difference["mean"] > 0
    if difference["is_clear"]:
        return f"It {'helped' if helped else 'hurt'}: {said}."
    if difference["low"] > 0 or difference["high"] < 0:
        unsure = f"p {difference['p_value']:.2f}: more seeds would tell"
        return f"It may have {'helped' if helped else 'hurt'}: {said} ({unsure})."
    return f"No clear difference: {said}."


def _drift(pretraining: Facts | None) -> str:
    """How the accuracy on mixed-in corpora changed in the pretraining."""
    if pretraining is None:
        return ""
    drifts = []
    for corpus in held_out_corpora(pretraining["history"]):
        ends = first_and_last(pretraining["history"], key_of("held_out_mlm_accuracy", corpus))
        if corpus and ends:
            drifts.append(f"{corpus} drift {change(ends[1] - ends[0])}")
    return "".join(f"; {drift}" for drift in drifts)


def _of_pretraining(facts: Facts) -> str:
    before, after = facts["before"], facts["after"]
    losses = " → ".join(decimal(record["held_out_mlm_loss"], 2) for record in (before, after))
    accuracies = f"{percent(before['held_out_mlm_accuracy'])} → {percent(after['held_out_mlm_accuracy'])}"
    return f"Held-out MLM loss {losses}, accuracy {accuracies}{_drift(facts)}."
