"""The comparison of models from their predictions: scores, differences, and what lies behind them.

n = examples, S = seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from albert.evaluation import (
    Calibration,
    ChangedExample,
    ClassScore,
    Comparison,
    Contamination,
    Cost,
    Difference,
    Intrinsic,
    ModelResult,
    SliceScore,
    Summary,
    SweepPoint,
    calibration,
    chance_of,
    entities_of,
    paired_difference,
    score,
    summarize,
)
from albert.finetuning.baselines import rule_runs, with_random_weights
from albert.finetuning.learner import Predictions
from albert.finetuning.settings import FineTuneSettings
from albert.finetuning.training import Candidate, SeedRun, Train, fine_tune_model, prepare, read_task
from albert.tasks import Kind, Split, TaskData

CHANGED_SHOWN = 20  # most examples fixed, and most examples broken, in a report
_LENGTH_SLICES = 4


@dataclass(frozen=True, kw_only=True)
class ModelRuns:
    """The runs of one model, one for each seed, and the other measurements of it."""

    candidate: Candidate
    runs: Sequence[SeedRun]
    sweep: Sequence[SweepPoint] = ()
    note: str | None = None
    cost: Cost | None = None
    intrinsic: Intrinsic | None = None
    contamination: tuple[Contamination, ...] = ()
    pretraining: tuple[Mapping[str, float], ...] = ()

    @property
    def predictions(self) -> list[Predictions]:
        """The predictions on the reported split, by seed."""
        return [run.test or run.dev for run in self.runs]


def fine_tune(settings: FineTuneSettings) -> Comparison:
    """Train every model with every seed, then score and compare them."""
    data = read_task(settings)
    models: list[ModelRuns] = []
    for number in range(len(settings.models)):
        candidate = prepare(settings, data, number)
        runs, points = fine_tune_model(candidate)
        models.append(ModelRuns(candidate=candidate, runs=runs, sweep=points))
    return compare_models(data, models, baseline_runs(models[0].candidate))


def baseline_runs(candidate: Candidate, train: Train | None = None) -> list[ModelRuns]:
    """Simple methods on the candidate's task, and its architecture trained from random weights."""
    if candidate.settings.baselines == "no":
        return []
    untrained = with_random_weights(candidate)
    runs, points = fine_tune_model(untrained, train)
    return [
        *(ModelRuns(candidate=named, runs=[run]) for named, run in rule_runs(candidate)),
        ModelRuns(candidate=untrained, runs=runs, sweep=points),
    ]


def compare_models(
    data: TaskData,
    models: Sequence[ModelRuns],
    baselines: Sequence[ModelRuns] = (),
    *,
    domain_words: Sequence[str] = (),
    stepwise: bool = False,
) -> Comparison:
    """Compare models with the first, which is the baseline.

    `domain_words`: slice the examples by their number too. `stepwise`: also compare each model with the one
    before it.
    """
    split: Literal["dev", "test"] = "test" if "test" in data.splits else "dev"
    slices = _slices(data.splits[split], models[0].candidate.encoded[split].sizes, domain_words)
    results = [_result(model, data, split, slices) for model in models]
    reported = data.splits[split]
    return Comparison(
        task=data.task.name,
        kind=str(data.task.kind),
        metric=data.task.metrics[0],
        metrics=data.task.metrics,
        split=split,
        labels=data.labels,
        examples={name: len(one.examples) for name, one in data.splits.items()},
        skipped=tuple(line for one in data.splits.values() for line in one.skipped),
        chance=chance_of(data, reported),
        seeds=tuple(run.result.seed for run in models[0].runs),
        models=tuple(replace(result, drift=_drift(result, results[0])) for result in results),
        differences=tuple(_difference(models[0], one, data, reported) for one in models[1:]),
        steps=tuple(_difference(a, b, data, reported) for a, b in pairwise(models)) if stepwise else (),
        baselines=tuple(
            replace(_result(one, data, split, slices), checkpoint="", checksum="") for one in baselines
        ),
    )


def _drift(result: ModelResult, first: ModelResult) -> float | None:
    now, before = (one.intrinsic.general_mlm_accuracy if one.intrinsic else None for one in (result, first))
    return None if now is None or before is None else now - before


def _result(model: ModelRuns, data: TaskData, split: str, slices: Sequence[_Slice]) -> ModelResult:
    scores = {
        part: {
            metric: summarize([getattr(run.result, part)[metric] for run in model.runs])
            for metric in data.task.metrics
        }
        for part in dict.fromkeys(("dev", split))
    }
    predictions = model.predictions
    return ModelResult(
        name=model.candidate.name,
        checkpoint=str(model.candidate.path),
        checksum=model.candidate.checksum,
        note=model.note,
        seeds=tuple(run.result for run in model.runs),
        sweep=tuple(model.sweep),
        dev=scores["dev"],
        test=scores.get("test"),
        classes=_classes(data, split, predictions),
        confusion=_confusion(data, split, predictions),
        calibration=_calibration(model, split, predictions),
        slices=_slice_scores(model, data.task.metrics[0], slices),
        cost=model.cost,
        intrinsic=model.intrinsic,
        contamination=model.contamination,
        pretraining=model.pretraining,
    )


def _confusion(
    data: TaskData, split: str, predictions: Sequence[Predictions]
) -> tuple[tuple[int, ...], ...] | None:
    if data.task.kind not in (Kind.SINGLE, Kind.PAIR):
        return None
    C = len(data.labels)
    number = {label: at for at, label in enumerate(data.labels)}
    gold = np.array([number[label] for label in data.splits[split].labels])
    counts = np.sum([np.bincount(gold * C + one.labels, minlength=C * C) for one in predictions], axis=0)
    return tuple(tuple(row) for row in counts.reshape(C, C).tolist())


def _classes(data: TaskData, split: str, predictions: Sequence[Predictions]) -> tuple[ClassScore, ...]:
    confusion = _confusion(data, split, predictions)
    if confusion is not None:
        table = np.array(confusion)
        sums = list(zip(data.labels, table.diagonal(), table.sum(0), table.sum(1), strict=True))
    elif data.task.kind is Kind.TOKENS:
        sums = _entity_sums(data.splits[split], predictions)
    else:
        return ()
    return tuple(
        ClassScore(
            label=label,
            precision=float(right / max(predicted, 1)),
            recall=float(right / max(gold, 1)),
            f1=float(2 * right / max(predicted + gold, 1)),
            support=int(gold) // len(predictions),
        )
        for label, right, predicted, gold in sums
    )


def _entity_sums(split: Split, predictions: Sequence[Predictions]) -> list[tuple[str, int, int, int]]:
    """(type, right, predicted, gold) over all seeds."""
    right: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for one in predictions:
        for ours, theirs in zip(one.tags or (), split.tags, strict=True):
            mine, wanted = entities_of(ours), entities_of(theirs)
            right.update(kind for kind, *_ in mine & wanted)
            predicted.update(kind for kind, *_ in mine)
            gold.update(kind for kind, *_ in wanted)
    return [(kind, right[kind], predicted[kind], gold[kind]) for kind in sorted(gold | predicted)]


def _calibration(model: ModelRuns, split: str, predictions: Sequence[Predictions]) -> Calibration | None:
    probabilities = [one.probabilities for one in predictions if one.probabilities is not None]
    if not probabilities:
        return None
    return calibration(np.stack(probabilities), model.candidate.encoded[split].targets)


class _Slice(NamedTuple):
    """The examples whose value is in `low`..`high`."""

    by: str
    low: int
    high: int | None
    examples: np.ndarray


def _slices(split: Split, sizes: np.ndarray, domain_words: Sequence[str]) -> list[_Slice]:
    """Quarters of the examples by their length in tokens, and slices by their number of domain words."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, _LENGTH_SLICES + 1)[1:-1], method="lower"))
    slices = _cut("length", sizes, [int(sizes.min()), *(int(edge) + 1 for edge in edges)])
    if domain_words:
        slices += _cut("domain words", _count_words(split, domain_words), [0, 1, 2])
    return slices


def _cut(by: str, values: np.ndarray, bounds: Sequence[int]) -> list[_Slice]:
    """A slice for each range that begins at one of `bounds` and holds examples; the last has no end."""
    slices = []
    for low, end in zip(bounds, [*bounds[1:], None], strict=True):
        inside = np.flatnonzero((values >= low) & (values < (np.inf if end is None else end)))
        if len(inside):
            slices.append(_Slice(by, low, None if end is None else end - 1, inside))
    return slices


def _slice_scores(model: ModelRuns, metric: str, slices: Sequence[_Slice]) -> tuple[SliceScore, ...]:
    def summary(examples: np.ndarray) -> Summary:
        sums = (one.statistics[metric][examples].sum(0) for one in model.predictions)
        return summarize([float(score(metric, of_seed)) for of_seed in sums])

    return tuple(
        SliceScore(one.by, one.low, one.high, len(one.examples), summary(one.examples)) for one in slices
    )


def _count_words(split: Split, words: Sequence[str]) -> np.ndarray:
    """The number of the words that each example holds, [n]."""
    texts = ["\n".join(one.texts()) for one in split.examples]
    return np.array([sum(word in text for word in words) for text in texts])


def _difference(baseline: ModelRuns, model: ModelRuns, data: TaskData, split: Split) -> Difference:
    metric = data.task.metrics[0]
    first, second = (
        np.stack([one.statistics[metric] for one in runs.predictions]) for runs in (baseline, model)
    )
    paired = paired_difference(metric, first, second, seedless=data.task.kind is Kind.SIMILARITY)
    fixed, broken = _changed(baseline, model, split)
    return Difference(
        model=model.candidate.name,
        baseline=baseline.candidate.name,
        metric=metric,
        mean=paired.summary.mean,
        deviation=paired.summary.deviation,
        values=paired.summary.values,
        low=paired.low,
        high=paired.high,
        p_value=paired.p_value,
        probability=paired.probability,
        is_clear=paired.is_clear,
        fixed=len(fixed),
        broken=len(broken),
        fixed_examples=tuple(fixed[:CHANGED_SHOWN]),
        broken_examples=tuple(broken[:CHANGED_SHOWN]),
    )


def _changed(
    baseline: ModelRuns, model: ModelRuns, split: Split
) -> tuple[list[ChangedExample], list[ChangedExample]]:
    """The examples that most seeds get right with one model and wrong with the other: fixed, broken."""
    ours, theirs = model.predictions, baseline.predictions
    if ours[0].right is None:
        return [], []
    S = len(ours)
    before, after = (
        np.sum([one.right for one in predictions if one.right is not None], axis=0)
        for predictions in (theirs, ours)
    )
    gold = model.candidate.learner.gold(split.examples)

    def examples(chosen: np.ndarray) -> list[ChangedExample]:
        clearest = chosen[np.argsort(-abs(after - before)[chosen], kind="stable")]
        return [
            ChangedExample(
                number=int(at) + 1,
                text=split.examples[at].describe(),
                gold=gold[at],
                baseline=_most_frequent(theirs, at),
                model=_most_frequent(ours, at),
                baseline_right=int(before[at]),
                model_right=int(after[at]),
            )
            for at in clearest.tolist()
        ]

    fixed = np.flatnonzero((2 * before < S) & (2 * after > S))
    broken = np.flatnonzero((2 * before > S) & (2 * after < S))
    return examples(fixed), examples(broken)


def _most_frequent(predictions: Sequence[Predictions], at: int) -> str:
    return Counter(one.answers[at] for one in predictions).most_common(1)[0][0]
