"""What a comparison of fine-tuned models found, as typed records and as metrics.json holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

Facts = Mapping[str, object]  # a record as JSON has it


@dataclass(frozen=True, slots=True)
class Summary:
    """What several seeds say together."""

    mean: float
    deviation: float  # sample standard deviation; 0 for a single value
    values: tuple[float, ...]  # in the order of the comparison's seeds


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A point of a fine-tuning's curve."""

    epoch: int  # counted from 1
    train_loss: float | None  # mean over the epoch; None: it was not finite
    dev: float  # the task's main metric


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """One model fine-tuned with one seed; test is scored once, at the epoch that was best on dev."""

    seed: int
    learning_rate: float
    best_epoch: int  # counted from 1; 0 for a task without training
    restarts: int  # starts given up because they did not leave chance level
    left_chance: bool  # whether the one that is reported did
    dev: Mapping[str, float]  # by metric, the main one first
    test: Mapping[str, float] | None
    curve: tuple[EpochRecord, ...]
    seconds: float
    examples_per_second: float  # of training alone


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A learning rate that was tried with the first seed; the best on dev is used with every seed."""

    learning_rate: float
    dev: float  # the task's main metric
    left_chance: bool


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Of one label, or one entity type, over all seeds."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # gold examples (entities) of one seed


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Predictions whose confidence (largest probability) is in (low, high]."""

    low: float
    high: float
    count: int  # over all seeds
    confidence: float  # mean
    accuracy: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Expected calibration error with bins of equal width (Naeini et al. 2015; Guo et al. 2017, eq. 3)."""

    ece: float  # mean of the seeds' own
    bins: tuple[CalibrationBin, ...]  # of the predictions of all seeds; empty ones left out


@dataclass(frozen=True, slots=True)
class SliceScore:
    """The main metric on some of the examples."""

    by: str  # "length" in tokens, or "domain words" an example holds
    low: int  # from, including
    high: int | None  # to, including; None: no end
    examples: int
    score: Summary


@dataclass(frozen=True, slots=True)
class Latency:
    """Time of one forward pass of the fine-tuned model on test examples, on this machine."""

    batch_size: int
    p50_ms: float
    p95_ms: float
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a model costs beside what it scores."""

    parameters: int
    flops: float  # of a forward pass over a sequence of `sequence_length` tokens, by arithmetic
    sequence_length: int
    checkpoint_bytes: int  # of the weights
    latency: tuple[Latency, ...]  # at batch 1 and 32
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Intrinsic:
    """What a checkpoint knows before fine-tuning, on texts it never saw, with fixed masks."""

    domain_mlm_loss: float | None = None
    domain_mlm_accuracy: float | None = None
    general_mlm_loss: float | None = None
    general_mlm_accuracy: float | None = None
    sop_accuracy: float | None = None  # on held-out documents with an order
    cloze_accuracy: float | None = None  # share of domain words of which every token is predicted
    cloze_words: int = 0  # occurrences asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Contamination:
    """Texts of an evaluation split that a pretraining corpus holds."""

    corpus: str
    version: int
    split: str  # "dev" or "test"
    texts: int  # that are long enough to prove anything
    found: int  # of them in the corpus
    documents: int  # of the corpus that hold one
    examples: tuple[str, ...]  # a few that were found


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model of a comparison."""

    name: str
    checkpoint: str
    checksum: str  # sha256 of its weights
    note: str | None = None  # to be shown beside the name, as "flawed control"
    seeds: tuple[SeedResult, ...]
    sweep: tuple[SweepPoint, ...] = ()
    dev: Mapping[str, Summary]  # by metric, the main one first
    test: Mapping[str, Summary] | None
    classes: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] | None = None  # [gold][predicted], summed over the seeds
    calibration: Calibration | None = None
    slices: tuple[SliceScore, ...] = ()
    cost: Cost | None = None
    intrinsic: Intrinsic | None = None
    drift: float | None = None  # general MLM accuracy less that of the first model
    contamination: tuple[Contamination, ...] = ()
    pretraining: tuple[Mapping[str, float], ...] = ()  # history of the run that made it, if it is known


@dataclass(frozen=True, slots=True)
class ChangedExample:
    """An example that most seeds get right with one of two models and wrong with the other."""

    number: int  # of the example in its split, counted from 1
    text: str
    gold: str
    baseline: str  # the most frequent prediction over the seeds
    model: str
    baseline_right: int  # seeds
    model_right: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much a model scores above another of the comparison, on the reported split."""

    model: str
    baseline: str
    metric: str
    mean: float
    deviation: float  # of the seeds' differences
    values: tuple[float, ...]  # one a seed
    low: float | None  # ends of the 95% bootstrap interval over seeds and examples; None with a single seed
    high: float | None
    p_value: float | None  # paired two-sided t test over the seeds; None with a single seed
    probability: float | None  # that the model beats the baseline; None with a single seed
    is_clear: bool  # the interval leaves out zero and p < 0.05
    fixed: int  # examples most seeds got wrong with the baseline and right with this one
    broken: int  # the other way round
    fixed_examples: tuple[ChangedExample, ...] = ()  # the surest first
    broken_examples: tuple[ChangedExample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several models on one task under the same seeds, order and budget. The first is the baseline."""

    task: str
    kind: str  # of albert.tasks.Kind
    metric: str  # the main one: chooses the epoch, and is what differences are of
    metrics: tuple[str, ...]  # all that are reported, the main one first
    split: str  # the one reported: "test", or "dev" where there is no test
    labels: tuple[str, ...]  # empty for kinds without
    examples: Mapping[str, int]  # by split
    skipped: tuple[str, ...]  # rows that could not be used: where and why
    chance: float  # main metric on the reported split of a constant or random answer
    seeds: tuple[int, ...]
    models: tuple[ModelResult, ...]
    differences: tuple[Difference, ...]  # of each model but the first, to the first
    steps: tuple[Difference, ...] = ()  # of each to the one before it, where each changes one thing

    def model(self, name: str) -> ModelResult:
        """The model of a name. Raises KeyError if there is none."""
        found = {model.name: model for model in self.models}
        return found[name]

    def difference(self, name: str) -> Difference | None:
        """Of a model to the first; None for the first itself."""
        return next((one for one in self.differences if one.model == name), None)

    def scores(self, name: str) -> Mapping[str, Summary]:
        """A model's scores on the reported split, by metric."""
        model = self.model(name)
        return model.dev if model.test is None else model.test

    @property
    def is_contaminated(self) -> bool:
        """Whether a corpus that a model was pretrained on holds texts of dev or test."""
        return any(one.found for model in self.models for one in model.contamination)

    def to_record(self) -> dict[str, object]:
        """As plain JSON. Raises ValueError for a number JSON cannot hold: there must be none."""
        record = plain({**asdict(self), "is_contaminated": self.is_contaminated})
        assert isinstance(record, dict)
        return record


def plain(value: object) -> object:
    """Mappings, sequences and scalars as JSON has them.

    >>> plain({"a": (1, None)})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} in a comparison's record")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{type(value).__name__} in a comparison's record")


def reported(model: Facts) -> Facts:
    """A model's scores on the reported split, by metric."""
    return model["dev"] if model["test"] is None else model["test"]


def difference_of(facts: Facts, model: str) -> Facts | None:
    """Of a model to the baseline; None for the baseline."""
    return next((one for one in facts["differences"] if one["model"] == model), None)


def subject(evaluation: Facts) -> Facts:
    """The model that the verdict is about: of those compared with the first, the one that is best on dev, so
    that test has no say in which. One whose corpus holds texts of the task only if there is no other.
    """
    first, *others = evaluation["models"]
    clean = [model for model in others if not has_read_more(model, first)]
    return max(clean or others, key=lambda model: model["dev"][evaluation["metric"]]["mean"])


def has_read_more(model: Facts, other: Facts) -> bool:
    """Whether one of two models was pretrained on texts of the task's dev or test that the other was not, so
    that their difference says nothing.
    """
    return _leaks(model) != _leaks(other)


def _leaks(model: Facts) -> set[tuple[str, int, str]]:
    return {(one["corpus"], one["version"], one["split"]) for one in model["contamination"] if one["found"]}


def evaluation_titles(evaluations: Sequence[Facts]) -> list[str]:
    """A title for each; where there are several, with the model that others are compared with."""
    titles = [f"Evaluation: {facts['task']}" for facts in evaluations]
    if len(titles) == 1:
        return titles
    firsts = [facts["models"][0]["name"] for facts in evaluations]
    return [f"{title}, against {first}" for title, first in zip(titles, firsts, strict=True)]


def label_of(model: Facts) -> str:
    """A model's name with its note."""
    return f"{model['name']} ({model['note']})" if model["note"] else model["name"]


def metric_name(metric: str) -> str:
    """
    >>> metric_name("macro_f1")
    'macro F1'
    """
    return metric.replace("_", " ").replace("f1", "F1")
