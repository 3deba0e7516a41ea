"""The records of a comparison of fine-tuned models; metrics.json of a report is written from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from albert.tasks import Overlap

SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Summary:
    """The mean of a score over seeds, and how far it can be trusted."""

    mean: float
    half_width: float | None  # of the 95% interval over seeds and examples; None: it cannot be told
    values: tuple[float, ...]  # one for each fine-tuning run


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A point of the curve of one fine-tuning."""

    epoch: int  # counted from 1
    train_loss: float | None  # mean over the epoch; None: it was not finite
    dev: float  # the task's main metric


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """One checkpoint fine-tuned with one seed; test is scored once, at the epoch that was best on dev."""

    seed: int
    learning_rate: float
    best_epoch: int = 0  # counted from 1; 0 without training
    restarts: int = 0  # starts abandoned because they did not leave chance level
    left_chance: bool = True  # whether the reported start did, on test if there is one
    dev: Mapping[str, float]  # by metric, the main one first
    test: Mapping[str, float] | None = None
    curve: tuple[EpochRecord, ...] = ()
    seconds: float
    examples_per_second: float = 0.0  # of training alone


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
    sequence_length: float  # tokens, the mean of the reported split
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
    general_outcomes: str | None = None  # of its masked tokens: see albert.evaluation.held_out.outcomes_of
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
    examples: tuple[int, ...]  # numbers in the split, from 0, of the examples with such a text
    share: float = 0.0  # of a text's sequences of 13 letters that make it found; 0: any one of them


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model of a comparison: a checkpoint, or those of several pretraining runs of one recipe."""

    name: str
    checkpoints: tuple[str, ...]
    checksums: tuple[str, ...]  # sha256 of their weights
    is_fixed: bool = False  # nothing in it is random: it has one run, without training
    note: str | None = None  # shown beside the name, such as "mismatched"
    seeds: tuple[SeedResult, ...]  # all seeds of the first checkpoint, then of the next
    outcomes: str  # statistics of the main metric by run and example: see albert.evaluation.contrasts
    sweep: tuple[SweepPoint, ...] = ()
    dev: Mapping[str, Summary]  # by metric, the main one first
    test: Mapping[str, Summary] | None
    classes: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] | None = None  # [gold][predicted], summed over the seeds
    calibration: Calibration | None = None
    slices: tuple[SliceScore, ...] = ()
    cost: Cost | None = None  # of the first checkpoint, as what follows
    intrinsic: Intrinsic | None = None
    drift: float | None = None  # general MLM accuracy minus that of the first model
    drift_half_width: float | None = None  # of its 95% interval, over documents
    contamination: tuple[Contamination, ...] = ()
    pretraining: tuple[Mapping[str, float], ...] = ()  # history of the run that made it, if known

    @property
    def reported(self) -> Mapping[str, Summary]:
        """The scores on the reported split, by metric."""
        return self.dev if self.test is None else self.test

    @property
    def label(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name

    @property
    def numbered_runs(self) -> list[tuple[int, SeedResult]]:
        """Each fine-tuning run with the number of its pretraining run, from 1; 0 where there is one."""
        each = len(self.seeds) // len(self.checkpoints)
        return [(at // each + 1 if each < len(self.seeds) else 0, one) for at, one in enumerate(self.seeds)]

    def read_alone(self, other: ModelResult, split: str) -> set[int]:
        """The examples of a split of which a corpus that only one of the two models read may hold a text."""
        ours, theirs = (
            {(one.corpus, at) for one in model.contamination if one.split == split for at in one.examples}
            for model in (self, other)
        )
        return {at for _, at in ours ^ theirs}


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
class Changes:
    """The examples that most seeds get right with one of two models and wrong with the other."""

    model: str
    baseline: str
    fixed: int  # wrong with the baseline and right with the model
    broken: int  # the opposite
    fixed_examples: tuple[ChangedExample, ...] = ()  # the clearest first
    broken_examples: tuple[ChangedExample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much higher a model scores than another of the comparison, on the reported split.

    Student's interval and test over seeds, or pretraining runs, and examples: albert.evaluation.intervals.
    """

    model: str
    baseline: str
    mean: float
    values: tuple[float, ...]  # one for each seed, or for each pretraining run of the model
    left_out: int = 0  # examples of which a corpus that only one of the two read may hold a text
    half_width: float | None = None  # of the 95% interval; None: it cannot be told
    least_half_width: float | None = None  # about what it would be with any number of seeds or runs
    degrees: float | None = None  # of freedom
    p_value: float | None = None  # two-sided, of this difference alone
    adjusted_p: float | None = None  # the primary one's own; of the others Holm's, for their number
    is_primary: bool = False  # named before the run: the verdict is about it
    unknown: str | None = None  # why no interval can be told

    @property
    def is_clear(self) -> bool:
        """Whether the adjusted p is below 0.05: what is bold, and what a verdict rests on."""
        return self.adjusted_p is not None and self.adjusted_p < SIGNIFICANCE


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
    notes: tuple[str, ...] = ()  # labels without an example, texts that were cut or that most examples have
    overlaps: tuple[Overlap, ...] = ()  # texts that two splits have in common
    dropped: int = 0  # training examples that were left out for it
    chance: float  # main metric of a constant or random answer on the reported split
    groups: tuple[int, ...] | None = None  # of each reported example, as Split.groups has them
    obstacle: str | None = None  # why no difference can be judged, such as one label in test
    seeds: tuple[int, ...]  # of each checkpoint
    models: tuple[ModelResult, ...]
    primary: str | None = None  # the model, named before the run, whose difference is not corrected
    differences: tuple[Difference, ...] = ()  # of each other model to the first
    steps: tuple[Difference, ...] = ()  # of each model to the one before it, where each changes one thing
    changes: tuple[Changes, ...] = ()  # from the first model to each other
    baselines: tuple[ModelResult, ...] = ()  # simple methods and random weights on the same examples

    def model(self, name: str) -> ModelResult:
        """The model of a name. Raises KeyError if there is none."""
        return {model.name: model for model in self.models}[name]

    def difference(self, name: str) -> Difference | None:
        """The difference of a model to the first; None for the first itself."""
        return next((one for one in self.differences if one.model == name), None)

    @property
    def subject(self) -> ModelResult:
        """The model that the verdict is about: the primary one, else the last."""
        return self.model(self.primary) if self.primary else self.models[-1]


def evaluation_titles(evaluations: Sequence[Comparison]) -> list[str]:
    """A title for each evaluation; if there are several, each names its baseline."""
    against = [f", against {one.models[0].name}" if len(evaluations) > 1 else "" for one in evaluations]
    return [f"Evaluation: {one.task}{what}" for one, what in zip(evaluations, against, strict=True)]


def metric_name(metric: str) -> str:
    """
    >>> metric_name("macro_f1")
    'macro F1'
    """
    return metric.replace("_", " ").replace("f1", "F1")
