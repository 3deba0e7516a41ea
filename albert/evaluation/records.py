"""The records of a comparison of fine-tuned models; metrics.json of a report is written from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Summary:
    """The mean and spread of a score over seeds."""

    mean: float
    deviation: float  # sample standard deviation; 0 for a single value
    values: tuple[float, ...]  # in the order of the comparison's seeds


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A point of the curve of one fine-tuning."""

    epoch: int  # counted from 1
    train_loss: float | None  # mean over the epoch; None: it was not finite
    dev: float  # the task's main metric


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """One model fine-tuned with one seed; test is scored once, at the epoch that was best on dev."""

    seed: int
    learning_rate: float
    best_epoch: int  # counted from 1; 0 for a task without training
    restarts: int  # starts abandoned because they did not leave chance level
    left_chance: bool  # whether the reported start did
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
    """The scores of one label or entity type over all seeds."""

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

    ece: float  # mean over the seeds
    bins: tuple[CalibrationBin, ...]  # of the predictions of all seeds, without empty bins


@dataclass(frozen=True, slots=True)
class SliceScore:
    """The main metric on some of the examples."""

    by: str  # "length" in tokens, or the number of "domain words" in an example
    low: int  # first value of the slice
    high: int | None  # last value; None: no end
    examples: int
    score: Summary


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one forward pass of the fine-tuned model on test examples, on this machine."""

    batch_size: int
    p50_ms: float
    p95_ms: float
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a model costs."""

    parameters: int
    flops: float  # of a forward pass over a sequence of `sequence_length` tokens, by arithmetic
    sequence_length: int
    checkpoint_bytes: int  # of the weights
    latency: tuple[Latency, ...]  # at batch 1 and 32
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Intrinsic:
    """What a checkpoint knows before fine-tuning, on unseen texts with fixed masks."""

    domain_mlm_loss: float | None = None
    domain_mlm_accuracy: float | None = None
    general_mlm_loss: float | None = None
    general_mlm_accuracy: float | None = None
    sop_accuracy: float | None = None  # on held-out documents with an order
    cloze_accuracy: float | None = None  # share of domain words of which every token is predicted
    cloze_words: int = 0  # occurrences predicted


@dataclass(frozen=True, kw_only=True, slots=True)
class Contamination:
    """How many texts of an evaluation split a pretraining corpus holds."""

    corpus: str
    version: int
    split: str  # "dev" or "test"
    texts: int  # texts long enough for a match to mean something
    found: int  # those that the corpus holds
    documents: int  # documents of the corpus that hold one
    examples: tuple[str, ...]  # a few of the texts found


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model of a comparison."""

    name: str
    checkpoint: str
    checksum: str  # sha256 of its weights
    note: str | None = None  # shown beside the name, such as "flawed control"
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
    drift: float | None = None  # general MLM accuracy minus that of the first model
    contamination: tuple[Contamination, ...] = ()
    pretraining: tuple[Mapping[str, float], ...] = ()  # history of the run that made it, if known

    @property
    def reported(self) -> Mapping[str, Summary]:
        """The scores on the reported split, by metric."""
        return self.dev if self.test is None else self.test

    @property
    def label(self) -> str:
        """The name with its note."""
        return f"{self.name} ({self.note})" if self.note else self.name

    def has_read_more(self, other: ModelResult) -> bool:
        """Whether one of the two models was pretrained on texts of the task's dev or test that the other was
        not, which makes their difference meaningless.
        """
        return self._leaks() != other._leaks()

    def _leaks(self) -> set[tuple[str, int, str]]:
        return {(one.corpus, one.version, one.split) for one in self.contamination if one.found}


@dataclass(frozen=True, slots=True)
class ChangedExample:
    """An example that most seeds get right with one of two models and wrong with the other."""

    number: int  # of the example in its split, counted from 1
    text: str
    gold: str
    baseline: str  # the most frequent prediction over the seeds
    model: str
    baseline_right: int  # seeds that are right with the baseline
    model_right: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much higher a model scores than another of the comparison, on the reported split."""

    model: str
    baseline: str
    metric: str
    mean: float
    deviation: float  # of the seeds' differences
    values: tuple[float, ...]  # one for each seed
    low: float | None  # ends of the 95% bootstrap interval over seeds and examples; None with a single seed
    high: float | None
    p_value: float | None  # paired two-sided t test over the seeds; None with a single seed
    probability: float | None  # that the model beats the baseline; None with a single seed
    is_clear: bool  # the interval excludes zero and p < 0.05
    fixed: int  # examples that most seeds get wrong with the baseline and right with this model
    broken: int  # the opposite
    fixed_examples: tuple[ChangedExample, ...] = ()  # the clearest first
    broken_examples: tuple[ChangedExample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several models on one task under the same seeds, order and budget. The first is the baseline."""

    task: str
    kind: str  # of albert.tasks.Kind
    metric: str  # the main metric: it chooses the epoch, and differences are differences of it
    metrics: tuple[str, ...]  # all that are reported, the main one first
    split: Literal["dev", "test"]  # the reported one: test where there is one
    labels: tuple[str, ...]  # empty for kinds without labels
    examples: Mapping[str, int]  # by split
    skipped: tuple[str, ...]  # rows that could not be used: where and why
    chance: float  # main metric of a constant or random answer on the reported split
    seeds: tuple[int, ...]
    models: tuple[ModelResult, ...]
    differences: tuple[Difference, ...]  # of each other model to the first
    steps: tuple[Difference, ...] = ()  # of each model to the one before it, where each changes one thing
    baselines: tuple[ModelResult, ...] = ()  # simple methods and random weights on the same examples

    def model(self, name: str) -> ModelResult:
        """The model of a name. Raises KeyError if there is none."""
        return {model.name: model for model in self.models}[name]

    def difference(self, name: str) -> Difference | None:
        """The difference of a model to the first; None for the first itself."""
        return next((one for one in self.differences if one.model == name), None)

    def subject(self) -> ModelResult:
        """The model that the verdict is about: the best on dev of those compared with the first, so that test
        has no say. A model whose corpus holds texts of the task is chosen only if there is no other.
        """
        first, *others = self.models
        clean = [model for model in others if not model.has_read_more(first)]
        return max(clean or others, key=lambda model: model.dev[self.metric].mean)


def evaluation_titles(evaluations: Sequence[Comparison]) -> list[str]:
    """A title for each evaluation; if there are several, each names its baseline."""
    titles = [f"Evaluation: {comparison.task}" for comparison in evaluations]
    if len(titles) == 1:
        return titles
    firsts = [comparison.models[0].name for comparison in evaluations]
    return [f"{title}, against {first}" for title, first in zip(titles, firsts, strict=True)]


def metric_name(metric: str) -> str:
    """
    >>> metric_name("macro_f1")
    'macro F1'
    """
    return metric.replace("_", " ").replace("f1", "F1")
