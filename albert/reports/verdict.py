"""The one sentence that a report begins with: did it help, by how much, how sure, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from albert.reports.evaluation_facts import (
    Facts,
    difference_of,
    is_contaminated,
    metric_name,
    reported,
    subject,
)
from albert.reports.sections import change, counted, percent, points
from albert.reports.training import first_and_last, held_out_corpora, key_of


def verdict(pretraining: Facts | None, evaluations: Sequence[Facts]) -> str:
    """Of the evaluations, a sentence each; else of the pretraining; else that nothing was trained."""
    if evaluations:
        drift = _drift(pretraining)
        return " ".join(_of_evaluation(one, drift) for one in evaluations)
    return _of_pretraining(pretraining) if pretraining else "Corpus only: nothing was trained."


def _of_evaluation(facts: Facts, drift: str) -> str:
    where = f"{metric_name(facts['metric'])} on {facts['task']} {facts['split']}"
    if not facts["differences"]:
        score = reported(facts["models"][0])[facts["metric"]]
        return f"{points(score['mean'])} points of {where}; nothing to compare with."
    model = subject(facts)
    difference = difference_of(facts, model["name"])
    over = f"over {counted(len(facts['seeds']), 'seed')}"
    named = f", {model['name']} against {difference['baseline']}" if len(facts["models"]) > 2 else ""
    if model["drift"] is not None:
        drift = f"; general drift {change(model['drift'])}"
    if difference["low"] is None:
        said = f"{change(difference['mean'])} points of {where} {over}{named}{drift}"
        return f"{said}: a single seed says nothing of the spread; give --seeds three or more."
    half = (difference["high"] - difference["low"]) / 2
    said = f"{change(difference['mean'])} ± {points(half)} points of {where} {over}{named}{drift}"
    if is_contaminated(facts["models"][0]) or is_contaminated(model):
        return f"Not to be trusted, a pretraining corpus holds texts of the task: {said}."
    if not difference["is_clear"]:
        return f"No clear difference: {said}."
    return f"It {'helped' if difference['mean'] > 0 else 'hurt'}: {said}."


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
    losses = f"{before['held_out_mlm_loss']:.2f} → {after['held_out_mlm_loss']:.2f}"
    accuracies = f"{percent(before['held_out_mlm_accuracy'])} → {percent(after['held_out_mlm_accuracy'])}"
    return f"Held-out MLM loss {losses}, accuracy {accuracies}{_drift(facts)}."
