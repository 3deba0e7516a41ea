"""From what models said of every example to the comparison: scores, differences, and where they come from.

n = examples, S = seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

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
    SweepPoint,
    calibration,
    chance_of,
    entities_of,
    paired_difference,
    score,
    summarize,
)
from albert.finetuning.learner import Predictions
from albert.finetuning.settings import FineTuneSettings
from albert.finetuning.training import Candidate, SeedRun, fine_tune_model, prepare, read_task
from albert.tasks import Kind, Split, TaskData

CHANGED_SHOWN = 20  # examples, each way
_LENGTH_SLICES = 4  # quarters of the examples


@dataclass(frozen=True, kw_only=True)
class ModelRuns:
    """What is known of one model: its runs, one a seed, and what was measured beside them."""

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
        """Of the reported split."""
        return [run.test or run.dev for run in self.runs]


def fine_tune(settings: FineTuneSettings) -> Comparison:
    """Train every model with every seed, score them and compare them."""
    data = read_task(settings)
    models: list[ModelRuns] = []
    for number in range(len(settings.models)):
        candidate = prepare(settings, data, number)
        runs, points = fine_tune_model(candidate)
        models.append(ModelRuns(candidate=candidate, runs=runs, sweep=points))
    return compare_models(data, models)


def compare_models(
    data: TaskData,
    models: Sequence[ModelRuns],
    *,
    domain_words: Sequence[str] = (),
    stepwise: bool = False,
) -> Comparison:
    """The comparison of models, the first being the baseline.

    `domain_words`: examples are sorted by how many of them they hold, beside their length. `stepwise`: each
    model is compared with the one before it too.
    """
    split = "test" if "test" in data.splits else "dev"
    slices = _slices(data.splits[split], models[0].candidate.encoded[split].sizes, domain_words)
    results = [_result(model, data, split, slices) for model in models]
    general = [one.intrinsic.general_mlm_accuracy if one.intrinsic else None for one in models]
    if general[0] is not None:
        results = [
            replace(result, drift=None if accuracy is None else accuracy - general[0])
            for result, accuracy in zip(results, general, strict=True)
        ]
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
        models=tuple(results),
        differences=tuple(_difference(models[0], one, data, reported) for one in models[1:]),
        steps=tuple(_difference(a, b, data, reported) for a, b in pairwise(models)) if stepwise else (),
    )


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
    gold = np.array([number[one.label] for one in data.splits[split].examples])
    counts = sum(np.bincount(gold * C + one.labels, minlength=C * C) for one in predictions)
    return tuple(tuple(row) for row in counts.reshape(C, C).tolist())


def _classes(data: TaskData, split: str, predictions: Sequence[Predictions]) -> tuple[ClassScore, ...]:
    confusion = _confusion(data, split, predictions)
    if confusion is not None:
        table = np.array(confusion)
        sums = zip(data.labels, table.diagonal(), table.sum(0), table.sum(1), strict=True)
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
    """(type, found, predicted, gold) over all seeds."""
    right: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for one in predictions:
        for example, tags in zip(split.examples, one.tags, strict=True):
            ours, theirs = entities_of(tags), entities_of(example.tags)
            right.update(kind for kind, *_ in ours & theirs)
            predicted.update(kind for kind, *_ in ours)
            gold.update(kind for kind, *_ in theirs)
    return [(kind, right[kind], predicted[kind], gold[kind]) for kind in sorted(gold | predicted)]


def _calibration(model: ModelRuns, split: str, predictions: Sequence[Predictions]) -> Calibration | None:
    if predictions[0].probabilities is None:
        return None
    gold = model.candidate.encoded[split].targets
    return calibration(np.stack([one.probabilities for one in predictions]), gold)


class _Slice(NamedTuple):
    """Some of the examples: those whose value is from `low` to `high`, both included."""

    by: str
    low: int
    high: int | None
    examples: np.ndarray


def _slices(split: Split, sizes: np.ndarray, domain_words: Sequence[str]) -> list[_Slice]:
    """Quarters of the examples by their length in tokens, and by how many domain words one holds."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, _LENGTH_SLICES + 1)[1:-1], method="lower"))
    found = _cut("length", sizes, [int(sizes.min()), *(int(edge) + 1 for edge in edges)])
    if domain_words:
        found += _cut("domain words", count_words(split, domain_words), [0, 1, 2])
    return found


def _cut(by: str, values: np.ndarray, bounds: Sequence[int]) -> list[_Slice]:
    """One for each of the ranges that begin at `bounds` and hold examples; the last has no end."""
    slices = []
    for low, end in zip(bounds, [*bounds[1:], None], strict=True):
        inside = np.flatnonzero((values >= low) & (values < (np.inf if end is None else end)))
        if len(inside):
            slices.append(_Slice(by, low, None if end is None else end - 1, inside))
    return slices


def _slice_scores(model: ModelRuns, metric: str, slices: Sequence[_Slice]) -> tuple[SliceScore, ...]:
    return tuple(
        SliceScore(
            one.by,
            one.low,
            one.high,
            len(one.examples),
            summarize(
                [float(score(metric, p.statistics[metric][one.examples].sum(0))) for p in model.predictions]
            ),
        )
        for one in slices
    )


def count_words(split: Split, words: Sequence[str]) -> np.ndarray:
    """How many of the words each example holds, [n]."""
    texts = ["\n".join(one.texts()) for one in split.examples]
    return np.array([sum(word in text for word in words) for text in texts])


def _difference(baseline: ModelRuns, model: ModelRuns, data: TaskData, split: Split) -> Difference:
    metric = data.task.metrics[0]
    first, second = (
        np.stack([one.statistics[metric] for one in runs.predictions]) for runs in (baseline, model)
    )
    found = paired_difference(metric, first, second, seedless=data.task.kind is Kind.SIMILARITY)
    fixed, broken = _changed(baseline, model, split)
    return Difference(
        model=model.candidate.name,
        baseline=baseline.candidate.name,
        metric=metric,
        mean=found.summary.mean,
        deviation=found.summary.deviation,
        values=found.summary.values,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        probability=found.probability,
        is_clear=found.is_clear,
        fixed=len(fixed),
        broken=len(broken),
        fixed_examples=tuple(fixed[:CHANGED_SHOWN]),
        broken_examples=tuple(broken[:CHANGED_SHOWN]),
    )


def _changed(
    baseline: ModelRuns, model: ModelRuns, split: Split
) -> tuple[list[ChangedExample], list[ChangedExample]]:
    """Examples that most seeds get right with one model and wrong with the other: fixed, broken."""
    ours, theirs = model.predictions, baseline.predictions
    if ours[0].right is None:
        return [], []
    S = len(ours)
    before = np.sum([one.right for one in theirs], axis=0)
    after = np.sum([one.right for one in ours], axis=0)
    gold = model.candidate.learner.gold(split.examples)

    def examples(chosen: np.ndarray) -> list[ChangedExample]:
        surest = chosen[np.argsort(-abs(after - before)[chosen], kind="stable")]
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
            for at in surest.tolist()
        ]

    fixed = np.flatnonzero((2 * before < S) & (2 * after > S))
    broken = np.flatnonzero((2 * before > S) & (2 * after < S))
    return examples(fixed), examples(broken)


def _most_frequent(predictions: Sequence[Predictions], at: int) -> str:
    return Counter(one.answers[at] for one in predictions).most_common(1)[0][0]
