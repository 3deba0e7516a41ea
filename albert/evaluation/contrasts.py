"""The differences between the models of a comparison, from the outcome of every run and example.

One difference is primary and named before the run; the others are corrected for their number. metrics.json
holds the outcomes as text, so that a verdict can be computed again. R = fine-tuning runs, n = examples, k =
statistics of an example (see `albert.evaluation.metrics`).
"""

from __future__ import annotations

import io
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from itertools import pairwise

import numpy as np

from albert.evaluation.intervals import (
    FEWEST_EXAMPLES,
    FEWEST_UNITS,
    Estimate,
    estimate,
    holm,
    linearised,
    shared_seeds,
    unit_scores,
)
from albert.evaluation.records import Comparison, Difference, ModelResult


def judge(comparison: Comparison, *, stepwise: bool) -> Comparison:
    """The comparison with the differences to the first model and, if `stepwise`, to the model before; also
    with every model's drift.
    """
    first, *others = comparison.models
    outcomes = {model.name: unpack(model.outcomes) for model in comparison.models}
    pairs = [(first, other) for other in others]
    steps = list(pairwise(comparison.models)) if stepwise else []
    found = {
        (a.name, b.name): _difference(comparison, a, b, outcomes[a.name], outcomes[b.name])
        for a, b in pairs + steps
    }
    # one that is also a step counts once
    rest = [key for key, one in found.items() if one.p_value is not None and not one.is_primary]
    for key, p_value in zip(rest, holm([found[key].p_value or 0.0 for key in rest]), strict=True):
        found[key] = replace(found[key], adjusted_p=p_value)
    return replace(
        comparison,
        models=tuple(_with_drift(model, first) for model in comparison.models),
        differences=tuple(found[a.name, b.name] for a, b in pairs),
        steps=tuple(found[a.name, b.name] for a, b in steps),
    )


def over_baseline(comparison: Comparison, baseline: ModelResult) -> list[Difference]:
    """The difference of each model to one of the comparison's baselines; p is of each alone."""
    of_baseline = unpack(baseline.outcomes)
    return [
        _difference(comparison, baseline, model, of_baseline, unpack(model.outcomes))
        for model in comparison.models
    ]


def _with_drift(model: ModelResult, first: ModelResult) -> ModelResult:
    """The model with the change of its general MLM accuracy, and its interval over documents."""
    before, now = (one.intrinsic.general_outcomes if one.intrinsic else None for one in (first, model))
    if before is None or now is None:
        return model
    theirs, ours = unpack(before), unpack(now)  # predicted, masked, document
    pairs = np.stack([ours[..., 0] - theirs[..., 0], ours[..., 1]], axis=-1)
    drift = estimate(linearised("accuracy", pairs, ours[0, :, 2]), fewest=2)
    return replace(model, drift=drift.mean, drift_half_width=drift.half_width)


def _difference(
    comparison: Comparison, baseline: ModelResult, model: ModelResult, *outcomes: np.ndarray
) -> Difference:
    """Seeds of two checkpoints are paired; pretraining runs of two recipes are not, as they share nothing.

    Examples that only one of the two may have read are left out, unless too few remain.
    """
    n = comparison.examples[comparison.split]
    read = sorted(model.read_alone(baseline, comparison.split))
    unread = np.setdiff1d(np.arange(n), read)
    kept = unread if len(unread) >= FEWEST_EXAMPLES else np.arange(n)
    groups = None if comparison.groups is None else np.array(comparison.groups)[kept]
    scores = [linearised(comparison.metric, of_one[:, kept], groups) for of_one in outcomes]
    several = [len(one.checkpoints) for one in (baseline, model)]
    first, second = map(unit_scores, scores, several)  # [U, n]: the seeds or pretraining runs of each
    is_paired = len(first) == len(second) and max(several) <= 1
    # a baseline, without a checkpoint, does not vary with the seeds as the runs of a recipe do
    arms = [shared_seeds(*one) for one in zip(scores, several, strict=True) if 0 in several and one[1] > 1]
    found = estimate(second - first) if is_paired else estimate(second, -first, *arms)
    values = second.mean(1) - (first.mean(1) if is_paired else first.mean())
    is_primary = baseline is comparison.models[0] and model.name == comparison.primary
    unknown = _unknown(comparison, len(unread), (baseline, first), (model, second))
    if not unknown and found.half_width is None:
        unknown = "every example comes out the same, in the mean of the runs"
    if unknown:
        found = Estimate(found.mean)
    return Difference(
        model=model.name,
        baseline=baseline.name,
        **found._asdict(),
        values=tuple(values.tolist()),
        left_out=n - len(kept),
        adjusted_p=found.p_value if is_primary else None,
        is_primary=is_primary,
        unknown=unknown,
    )


def _unknown(comparison: Comparison, unread: int, *models: tuple[ModelResult, np.ndarray]) -> str | None:
    """Why nothing can be said about the difference of two models with these units, if so."""
    if comparison.obstacle:
        return comparison.obstacle
    if unread < min(FEWEST_EXAMPLES, comparison.examples[comparison.split]):
        return f"one model alone may have read all but {unread} examples of {comparison.split}"
    n = models[0][1].shape[1]
    if n < FEWEST_EXAMPLES:
        what = "groups of examples" if comparison.groups else "examples"
        if n < len(set(comparison.groups or ())):
            what += " without those that one model alone may have read"
        return f"{comparison.split} has {n} {what}, at least {FEWEST_EXAMPLES} are needed"
    if not any(seed.left_chance for model, _ in models for seed in model.seeds):
        return "no run of either model left chance level"
    for model, units in models:
        if len(units) < FEWEST_UNITS and not model.is_fixed:
            many = "pretraining runs" if len(model.checkpoints) > 1 else "seeds"
            what = many if len(units) > 1 else "seed"
            return f"{model.name} has {len(units)} {what}, at least {FEWEST_UNITS} are needed"
    return None


def pack(statistics: np.ndarray) -> str:
    """Statistics [R, n, k] as base64 of a zlib stream of a NumPy .npy file; whole numbers as small integers.

    >>> unpack(pack(np.array([[[1.0, 1.0], [0.0, 1.0]]]))).tolist()
    [[[1.0, 1.0], [0.0, 1.0]]]
    """
    whole = statistics.astype(np.int64)
    sink = io.BytesIO()
    if (whole == statistics).all():
        # of both ends: centred ranks, the statistics of Spearman's coefficient, are negative too
        statistics = whole.astype(np.result_type(*map(np.min_scalar_type, (whole.min(), whole.max()))))
    np.save(sink, statistics)
    return b64encode(zlib.compress(sink.getvalue(), 9)).decode()


def unpack(text: str) -> np.ndarray:
    """The statistics [R, n, k] of a text."""
    content = np.load(io.BytesIO(zlib.decompress(b64decode(text))), allow_pickle=False)
    return np.asarray(content, dtype=np.float64)
