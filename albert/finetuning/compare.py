"""Compare models by their predictions: scores, differences, and what lies behind them.

n = examples, S = seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from albert.evaluation import (
    Calibration,
    ChangedExample,
    Changes,
    ClassScore,
    Comparison,
    ModelResult,
    SliceScore,
    Summary,
    SweepPoint,
    calibration,
    chance_of,
    judge,
    pack,
    summarize,
)
from albert.finetuning.encoding import Predictions
from albert.finetuning.settings import FineTuneSettings
from albert.finetuning.training import (
    Candidate,
    Run,
    SeedRun,
    Train,
    Trained,
    fine_tune_models,
    one_by_one,
    prepare,
    read_task,
)
from albert.tasks import Example, Kind, Split, TaggedExample, TaskData, entities_of

CHANGED_SHOWN = 20  # most examples fixed, and most examples broken, in a report
_LENGTH_SLICES = 4
MANY_SEEDS, FEW_SEEDS = 10, 5
SHORT_SECONDS = 60  # of a run, with which there are many seeds
_Slice = tuple[str, int, int | None, np.ndarray]  # by what, its first and last value, and the examples


@dataclass(frozen=True, kw_only=True)
class ModelRuns:
    """The runs of one model, or of the pretraining runs of one recipe."""

    name: str
    candidates: tuple[Candidate, ...]
    runs: Sequence[SeedRun]  # all seeds of the first candidate, then of the next
    sweep: Sequence[SweepPoint] = ()  # of the first candidate

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is random: one checkpoint or rule, without training."""
        is_drawn = len(self.candidates) > 1 or not self.candidates[0].is_pretrained
        return not is_drawn and not any(run.result.best_epoch for run in self.runs)

    @property
    def predictions(self) -> list[Predictions]:
        """The predictions on the reported split, by run."""
        return [run.test or run.dev for run in self.runs]


def fine_tune(settings: FineTuneSettings) -> Comparison:
    """Train every model with every seed, then score and compare them."""
    data = read_task(settings)
    return judge(compare_models(data, *train_models(settings, data)), stepwise=False)


def train_models(
    settings: FineTuneSettings, data: TaskData, train: Train = one_by_one
) -> tuple[list[ModelRuns], list[ModelRuns]]:
    """Train the models of each row of the comparison; returns them and the baselines.

    By default the first run decides how many seeds. The baselines are simple methods on the first model's
    tokens, and its architecture trained from random weights.
    """
    rows = settings.recipes()
    candidates = [prepare(settings, data, number) for numbers in rows.values() for number in numbers]
    if settings.seeds is None:
        seeds = choose_seeds(candidates[0], train)
        candidates = [replace(one, settings=replace(one.settings, seeds=seeds)) for one in candidates]
    first = candidates[0]
    rules: list[ModelRuns] = []
    untrained: list[Candidate] = []
    if settings.baselines != "no":
        from albert.finetuning.baselines import rule_runs, with_random_weights  # scikit-learn takes seconds

        untrained = [with_random_weights(first)]
        rules = [_row(one.name, [(one, ([run], ()))]) for one, run in rule_runs(first)]
    trained = iter(zip(candidates + untrained, fine_tune_models(candidates + untrained, train), strict=True))
    models = [_row(name, list(islice(trained, len(numbers)))) for name, numbers in rows.items()]
    return models, [*rules, *(_row(one.name, [(one, runs)]) for one, runs in trained)]


def _row(name: str, trained: Sequence[tuple[Candidate, Trained]]) -> ModelRuns:
    """A model, or the pretraining runs of a recipe."""
    candidates, of_each = zip(*trained, strict=True)
    runs = [run for runs, _ in of_each for run in runs]
    return ModelRuns(name=name, candidates=candidates, runs=runs, sweep=of_each[0][1])


def choose_seeds(candidate: Candidate, train: Train) -> tuple[int, ...]:
    """Choose ten seeds if a run with the first takes less than a minute, else five."""
    rates = candidate.settings.learning_rates
    (run,) = train([Run(candidate.without_test() if len(rates) > 1 else candidate, 0, rates[0])])
    return tuple(range(MANY_SEEDS if run.result.seconds < SHORT_SECONDS else FEW_SEEDS))


def compare_models(
    data: TaskData,
    models: Sequence[ModelRuns],
    baselines: Sequence[ModelRuns] = (),
    *,
    domain_words: Sequence[str] = (),
) -> Comparison:
    """The scores of models beside those of the first, which is the baseline; `judge` adds the differences.

    `domain_words`: slice the examples by their number too.
    """
    split: Literal["dev", "test"] = "test" if "test" in data.splits else "dev"
    reported, first = data.splits[split], models[0].candidates[0]
    slices = _slices(reported, first.encoded[split].sizes, domain_words)
    labels = {one.gold() for one in reported.examples if isinstance(one, Example)}
    return Comparison(
        task=data.task.name,
        kind=str(data.task.kind),
        metric=data.task.metrics[0],
        metrics=data.task.metrics,
        split=split,
        labels=data.labels,
        examples={name: len(one.examples) for name, one in data.splits.items()},
        skipped=tuple(line for one in data.splits.values() for line in one.skipped),
        notes=(*filter(None, [data.parted]), *data.absent, *_truncated(models), *_entangled(reported, split)),
        overlaps=data.overlaps,
        dropped=data.dropped,
        chance=chance_of(data, reported),
        groups=reported.groups,
        obstacle=f"all examples have the label {labels.pop() or 'none'}" if len(labels) == 1 else None,
        seeds=tuple(dict.fromkeys(run.result.seed for run in models[0].runs)),
        models=tuple(_result(model, data, split, slices) for model in models),
        primary=first.settings.primary_model(),
        changes=tuple(_changes(models[0], one, reported) for one in models[1:]),
        baselines=tuple(
            replace(_result(one, data, split, slices), checkpoints=(), checksums=()) for one in baselines
        ),
    )


def _truncated(models: Sequence[ModelRuns]) -> Iterator[str]:
    """A line for each split with texts longer than the maximum length, which may differ between models."""
    readers: dict[str, list[str]] = {}
    for model in models:
        for name, one in model.candidates[0].encoded.items():
            if one.cut:
                line = f"{one.describe_cut(name)} (running.max-seq-length)"
                readers.setdefault(line, []).append(model.name)
    for line, names in readers.items():
        yield line if len(names) == len(models) else f"{', '.join(names)}: {line}"


def _entangled(reported: Split, name: str) -> Iterator[str]:
    """A line where examples count as independent, though they have texts in common."""
    if reported.groups is None and reported.entangled:
        yield (
            f"{reported.entangled:,} of {len(reported.examples):,} {name} examples hang together by texts in "
            "common, too many for a group: intervals take them as independent"
        )


def _result(model: ModelRuns, data: TaskData, split: str, slices: Sequence[_Slice]) -> ModelResult:
    predictions, metrics, reported = model.predictions, data.task.metrics, data.splits[split]
    dev = [run.dev for run in model.runs]
    return ModelResult(
        name=model.name,
        checkpoints=tuple(str(one.path) for one in model.candidates),
        checksums=tuple(one.checksum for one in model.candidates),
        is_fixed=model.is_fixed,
        seeds=tuple(run.result for run in model.runs),
        outcomes=pack(np.stack([one.statistics[metrics[0]] for one in predictions])),
        sweep=tuple(model.sweep),
        dev={name: _summary(model, data.splits["dev"], dev, name) for name in metrics},
        test={name: _summary(model, reported, predictions, name) for name in metrics}
        if split == "test"
        else None,
        classes=_classes(data, reported, predictions),
        confusion=_confusion(data, reported, predictions),
        calibration=_calibration(model, split, predictions),
        slices=tuple(
            SliceScore(by, low, high, len(at), _summary(model, reported, predictions, metrics[0], at))
            for by, low, high, at in slices
        ),
    )


def _summary(
    model: ModelRuns,
    split: Split,
    predictions: Sequence[Predictions],
    metric: str,
    examples: np.ndarray | slice = slice(None),  # noqa: B008
) -> Summary:
    return summarize(
        metric,
        np.stack([one.statistics[metric][examples] for one in predictions]),
        None if split.groups is None else np.array(split.groups)[examples],
        checkpoints=len(model.candidates),
        is_fixed=model.is_fixed,
    )


def _confusion(
    data: TaskData, split: Split, predictions: Sequence[Predictions]
) -> tuple[tuple[int, ...], ...] | None:
    if data.task.kind not in (Kind.SINGLE, Kind.PAIR):
        return None
    golds = [one.gold() for one in split.examples]
    counts = Counter(pair for one in predictions for pair in zip(golds, one.answers, strict=True))
    return tuple(tuple(counts[gold, said] for said in data.labels) for gold in data.labels)


def _classes(data: TaskData, split: Split, predictions: Sequence[Predictions]) -> tuple[ClassScore, ...]:
    if data.task.kind is Kind.TOKENS:
        names, sums = _entity_sums(split, predictions)
    elif data.labels:
        names, sums = data.labels, np.sum([one.statistics["macro_f1"].sum(0) for one in predictions], axis=0)
    else:
        return ()
    return tuple(
        ClassScore(
            label=name,
            precision=float(right / max(predicted, 1)),
            recall=float(right / max(gold, 1)),
            f1=float(2 * right / max(predicted + gold, 1)),
            support=int(gold) // len(predictions),
        )
        for name, right, predicted, gold in zip(names, *np.split(sums, 3), strict=True)
    )


def _entity_sums(split: Split, predictions: Sequence[Predictions]) -> tuple[Sequence[str], np.ndarray]:
    """The types of entities, and how many of each are right, predicted and gold over all seeds, [3 C]."""
    golds = [entities_of(one.tags) for one in split.examples if isinstance(one, TaggedExample)]
    counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for one in predictions:
        for predicted, gold in zip(map(entities_of, one.tags or ()), golds, strict=True):
            for counter, entities in zip(counts, (predicted & gold, predicted, gold), strict=True):
                counter.update(kind for kind, *_ in entities)
    kinds = sorted(counts[1] | counts[2])
    return kinds, np.array([counter[kind] for counter in counts for kind in kinds])


def _calibration(model: ModelRuns, split: str, predictions: Sequence[Predictions]) -> Calibration | None:
    probabilities = [one.probabilities for one in predictions if one.probabilities is not None]
    if not probabilities or model.candidates[0].data.task.kind is Kind.MULTILABEL:
        return None
    return calibration(np.stack(probabilities), model.candidates[0].encoded[split].targets)


def _slices(split: Split, sizes: np.ndarray, domain_words: Sequence[str]) -> list[_Slice]:
    """Quarters of the examples by their length in tokens, and slices by their number of domain words."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, _LENGTH_SLICES + 1)[1:-1], method="lower"))
    slices = _cut("length", sizes, [int(sizes.min()), *(int(edge) + 1 for edge in edges)])
    if domain_words:
        texts = ["\n".join(one.texts()) for one in split.examples]
        counts = np.array([sum(word in text for word in domain_words) for text in texts])
        slices += _cut("domain words", counts, [0, 1, 2])
    return slices


def _cut(by: str, values: np.ndarray, bounds: Sequence[int]) -> list[_Slice]:
    """A slice for each range that begins at one of `bounds` and holds examples; the last has no end."""
    slices = []
    for low, end in zip(bounds, [*bounds[1:], None], strict=True):
        inside = np.flatnonzero((values >= low) & (values < (np.inf if end is None else end)))
        if len(inside):
            slices.append((by, low, None if end is None else end - 1, inside))
    return slices


def _changes(baseline: ModelRuns, model: ModelRuns, split: Split) -> Changes:
    """The examples that most runs get right with one model and wrong with the other."""
    ours, theirs = model.predictions, baseline.predictions
    if ours[0].right is None:
        return Changes(model=model.name, baseline=baseline.name, fixed=0, broken=0)
    before, after = (np.sum([np.asarray(one.right) for one in runs], axis=0) for runs in (theirs, ours))
    surest = np.argsort(-abs(after / len(ours) - before / len(theirs)), kind="stable")
    fixed = (2 * before < len(theirs)) & (2 * after > len(ours))
    broken = (2 * before > len(theirs)) & (2 * after < len(ours))

    def shown(chosen: np.ndarray) -> tuple[ChangedExample, ...]:
        return tuple(
            ChangedExample(
                number=at + 1,
                text=split.examples[at].describe(),
                gold=split.examples[at].gold(),
                baseline=_most_frequent(theirs, at),
                model=_most_frequent(ours, at),
                baseline_right=int(before[at]),
                model_right=int(after[at]),
            )
            for at in surest[chosen[surest]][:CHANGED_SHOWN].tolist()
        )

    return Changes(
        model=model.name,
        baseline=baseline.name,
        fixed=int(fixed.sum()),
        broken=int(broken.sum()),
        fixed_examples=shown(fixed),
        broken_examples=shown(broken),
    )


def _most_frequent(predictions: Sequence[Predictions], at: int) -> str:
    return Counter(one.answers[at] for one in predictions).most_common(1)[0][0]
