"""The options of every job, declared once: form, command line, recipe file and docs are made from them.

Knows neither Prefect nor torch, so that `--help` answers at once.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from albert.finetuning import FineTuneRunning, TuningOptions
from albert.pretraining import BatchTokens, PeakRate, Steps, TrainingOptions
from data.cleaning import GuardRules
from data.errors import ConfigError
from data.options import Commas, options, options_of, values_of
from data.refresh import RefreshSettings, load_recipe
from data.samples import FOLDER
from data.sources import SourceRules
from data.workspace import Workspace, default_place

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Workers = Annotated[int | None, Field(ge=1, le=1024)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Commas, Field(min_length=1)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], Commas, Field(min_length=1)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Commas]
Place = Annotated[
    str, Field(description="Folder for everything made, or a URL such as s3://bucket/workspace (工作区).")
]


class Job:
    """The options of any job."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    workspace: str
    dry_run = False

    @property
    def place(self) -> Workspace:
        """The workspace, once it is a folder of this machine."""
        return Workspace(Path(self.workspace))


@options
class DriftOptions:
    """What follows where new documents differ from older ones."""

    pretrain_if: str | None = None
    """Condition of pretraining after the refresh, such as drift>0.2 (漂移); of drift, new_words, unknown,
    lengths, mlm_loss."""
    steps: Steps = 1000
    """Steps of that pretraining (步数)."""
    event_if: str = "drift>0.3"
    """Condition of the event jixu.corpus.drifted (漂移事件)."""


@options
class RefreshRunning:
    """Where a refresh runs."""

    dask_address: str | None = None
    """Scheduler of the Dask cluster to use, such as tcp://10.0.0.1:8786 (集群)."""
    task_hours: Annotated[float, Field(gt=0, le=10_000)] = 12.0
    """Hours after which a task counts as hung (超时)."""


@options
class RefreshOptions(RefreshSettings, Job):
    """Turn raw text into a new version of a corpus, or none if nothing changed."""

    # a command resolves a URL to its copy, and the number of cores on the machine that it runs on
    workspace: Place = Field(default_factory=default_place)  # type: ignore[assignment]
    workers: Workers = None  # type: ignore[assignment]
    """Processes; one a core."""
    recipe: str | None = None
    """YAML file with these options (配方); what is set beside it takes precedence."""
    dry_run: bool = False
    """Print what would change, and change nothing."""
    drift: DriftOptions = DriftOptions()
    """What follows a drift (漂移)."""
    running: RefreshRunning = RefreshRunning()
    """Where it runs."""

    def settings(self) -> RefreshSettings:
        """The settings of the refresh: a recipe's, with what is set here in their place.

        A form does not say what was set: it is what differs from its default.
        """
        recipe = load_recipe(Path(self.recipe)) if self.recipe else {}
        values: dict[str, Any] = {"corpus": self.corpus, **recipe, "workspace": Path(self.workspace)}
        return merge(self, RefreshSettings(**values))


def merge(chosen: object, base: T) -> T:
    """`base` with the options of `chosen` that differ from their defaults."""
    changes: dict[str, Any] = {}
    for name, value in values_of(chosen, type(base)).items():
        old = getattr(base, name)
        if is_dataclass(old) and not isinstance(old, type):
            changes[name] = merge(value, old)
        elif value != options_of(type(chosen))[name].get_default(call_default_factory=True):
            changes[name] = value
    return replace(base, **changes)


@options
class PretrainingOptions(TrainingOptions, Job):
    """Train on a corpus, from a checkpoint or random weights; the same run again resumes where it stopped."""

    corpus: str
    """Name of a corpus of the workspace (语料名)."""
    init: str = "tiny"
    """Checkpoint, hf:REPO, or a preset for random weights (起点)."""
    mix: tuple[str, ...] = ()
    """Second corpora as NAME:SHARE of the tokens, e.g. general:0.2 (混入)."""
    then: str | None = None
    """Corpus of the last steps as NAME:SHARE, e.g. one of longer texts."""
    run: str | None = None
    """Name of the run; by default made from the settings."""
    processes: Annotated[int, Field(ge=1)] = 1
    """Processes on this machine, one a GPU (进程数)."""
    workspace: Place = Field(default_factory=default_place)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluation.max_forgetting is not None and not (self.mix or self.then):
            raise ConfigError("evaluation.max_forgetting is about corpora mixed in: give --mix too")


@options
class CorporaOptions:
    """Corpora of the workspace to evaluate models on."""

    domain: str | None = None
    """Corpus of the field, to measure models on and to search for texts of the task. Of models that no run of
    the workspace made, all but the first are taken to have read it (领域语料)."""
    general: str | None = None
    """General corpus, to measure what models forget of it (通用语料)."""


@options
class FineTuneJobRunning(FineTuneRunning):
    """How the computation runs."""

    workers: Workers = None
    """Runs at a time; by default one a core, at most as many as a model has seeds or rates, one on a GPU."""


@options
class FineTuneOptions(TuningOptions, Job):
    """Fine-tune models on a labelled task under the same seeds and compare them."""

    task: str
    """A task that comes with jixu, or a YAML task file (任务)."""
    model: Annotated[tuple[str, ...], Field(min_length=1)]
    """Checkpoints or hf:REPO, compared with the first (模型); NAME=PATH names one, NAME=PATH,PATH,PATH the
    pretraining runs of one recipe."""
    train: str | None = None
    """Training examples as published (训练集)."""
    dev: str | None = None
    """Examples that choose the best epoch (开发集); by default a tenth of train."""
    test: str | None = None
    """Examples scored once, at the best epoch (测试集); without dev too, by default a fifth of train."""
    primary: str | None = None
    """Name of the model that the verdict is about; by default the last (主要对比)."""
    run: str | None = None
    """Name of the report; by default made from the settings."""
    keep: Literal["best", "all", "none"] = "best"
    """Which fine-tuned models stay in models/RUN: of each model the best seed on dev, or all (保留模型)."""
    workspace: Place = Field(default_factory=default_place)
    running: FineTuneJobRunning = FineTuneJobRunning()
    """Precision, length, pooling, processes."""
    corpora: CorporaOptions = CorporaOptions()
    """Corpora to evaluate models on (语料)."""


@options
class TokenizerOptions(Job):
    """Learn a vocabulary from a corpus or raw text."""

    corpus: str | None = None
    """Corpus of the workspace to learn from (语料名)."""
    source: tuple[str, ...] = ()
    """Or raw text: files, folders or globs (原始文本)."""
    kind: Literal["wordpiece", "sentencepiece"] = "wordpiece"
    """Kind; wordpiece is BERT's (词表类型)."""
    vocab_size: Annotated[int, Field(ge=100, le=250_000)] = 21128
    """Maximum number of entries (词表大小)."""
    name: str | None = None
    """Name in the workspace; by default kind and size."""
    workspace: Place = Field(default_factory=default_place)
    reading: SourceRules = SourceRules()
    """How raw text is read."""


@options
class TextOptions:
    """How the corpora of a whole run are made."""

    vocab_size: Annotated[int, Field(ge=100, le=250_000)] = 21128
    """Maximum number of entries of a trained vocabulary."""
    max_seq_length: Annotated[int, Field(ge=16, le=512)] = 128
    """Maximum tokens per instance."""
    copies: Annotated[int, Field(ge=1, le=100)] = 1
    """Times each document is cut into instances anew."""
    max_unknown_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Largest share of [UNK] among a corpus's tokens."""


@options
class WholePretraining:
    """Both pretrainings of a whole run."""

    base_steps: Steps = 1000
    """Steps on the general text (步数)."""
    batch_tokens: BatchTokens = None
    """Tokens of a step; by default 32768 on a GPU, 4096 on a CPU."""
    learning_rate: PeakRate = None
    """Peak rate of both; by default from batch and start."""


@options
class EndToEndOptions(Job):
    """Raw text to evaluation report: tokenizer, corpora, base model, continued pretraining, comparison."""

    demo: bool = False
    """Run on the samples that come with jixu, in minutes; what differs from its default takes precedence."""
    general: tuple[str, ...] = ()
    """General raw text, for the base model (通用语料)."""
    domain: tuple[str, ...] = ()
    """Raw text of the field (领域语料)."""
    task: str | None = None
    """Name or YAML file of the task that judges (任务)."""
    train: str | None = None
    """Its training examples (训练集)."""
    dev: str | None = None
    """Its dev examples (开发集); by default a tenth of train."""
    test: str | None = None
    """Its test examples (测试集); without dev too, by default a fifth of train."""
    init: str = "tiny"
    """Start of the base model: a preset, or a checkpoint, which is the base model if there is no general text
    (起点)."""
    tokenizer: str | None = None
    """Vocabulary; by default trained, or the checkpoint's (词表)."""
    steps: Steps = 1000
    """Steps on the text of the field (步数)."""
    workers: Workers = None
    """Processes; by default one a core."""
    workspace: Place = Field(default_factory=default_place)
    reading: SourceRules = SourceRules()
    """How raw text is read."""
    text: TextOptions = TextOptions()
    """How the corpora are made."""
    guard: GuardRules = GuardRules()
    """Keeps the text of dev and test, and of further sets, out of the corpora."""
    pretraining: WholePretraining = WholePretraining()
    """Both pretrainings."""
    fine_tuning: TuningOptions = TuningOptions()
    """The fine-tuning that judges."""


def demo_options(options: EndToEndOptions) -> EndToEndOptions:
    """The samples that come with jixu, few labels, and sizes under which they take about three minutes on two
    cores, with the options that differ from their defaults.
    """
    demo = EndToEndOptions(
        domain=(str(FOLDER / "tea.jsonl"),),
        task="tea-topics",
        train=str(FOLDER / "tea_topics_train_48.tsv"),
        dev=str(FOLDER / "tea_topics_dev.tsv"),
        test=str(FOLDER / "tea_topics_test.tsv"),
        init="tiny-zh",
        steps=100,
        # a small corpus is read for many epochs: cut four ways, its pairs are harder to memorise
        text=TextOptions(copies=4),
        pretraining=WholePretraining(batch_tokens=2048, learning_rate=2e-4),
        # small models trained for a minute take a larger rate than published ones; a sweep or ten seeds would
        # take minutes
        fine_tuning=TuningOptions(seeds=(0, 1, 2), batch_size=16, learning_rate=8e-4),
    )
    return replace(merge(options, demo), demo=False)


@options
class FieldOptions:
    """A field: text to pretrain on, and the task that judges."""

    name: str
    """Name of the field and of its corpus (领域)."""
    text: Annotated[tuple[str, ...], Field(min_length=1)]
    """Raw text (领域语料)."""
    task: str
    """Name or YAML file of the task (任务)."""
    train: str
    """Its training examples, one a line (训练集)."""
    dev: str
    """Its dev examples (开发集)."""
    test: str
    """Its test examples (测试集)."""


@options
class ExperimentOptions(Job):
    """Pretrain on general text and on the text of two fields, and judge each on both fields' tasks."""

    general: Annotated[tuple[str, ...], Field(min_length=1)]
    """General raw text, a control and for replay (通用语料)."""
    first: FieldOptions
    """A field."""
    second: FieldOptions
    """The other field."""
    init: str = "tiny-zh"
    """Checkpoint that every arm starts from (起点)."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Scale of the pretraining; 1 is 1,000 steps a run."""
    minutes: Annotated[float | None, Field(gt=0)] = None
    """Minutes for the whole, half of them at most for pretraining; what they do not suffice for is left out,
    and the same command goes on from there."""
    labels: Counts = (1000, 200, 5000)
    """Numbers of training examples, first that of the primary contrast."""
    base_shares: Shares = (0.25, 0.5, 0.75)
    """Shares of the start in averages with the matched arm."""
    pretraining_seeds: Seeds = (0, 1, 2)
    """Seeds of pretraining; fewer than three say nothing of a recipe."""
    batch_tokens: BatchTokens = None
    """Tokens of a step; by default 32768 on a GPU, 4096 on a CPU."""
    learning_rate: PeakRate = None
    """Peak rate of pretraining; by default from batch and start."""
    replay: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of general text in a field's training."""
    workers: Workers = None
    """Processes; by default one a core."""
    workspace: Place = Field(default_factory=default_place)
    reading: SourceRules = SourceRules()
    """How raw text is read."""
    guard: GuardRules = GuardRules()
    """Keeps the text of dev and test, and of further sets, out of the corpora."""
    fine_tuning: TuningOptions = TuningOptions(seeds=(0, 1, 2, 3, 4))
    """The fine-tuning that judges."""

    def __post_init__(self) -> None:
        if len(set(self.pretraining_seeds)) < len(self.pretraining_seeds):
            raise ConfigError(f"pretraining_seeds={self.pretraining_seeds}: give each once")


JOBS: dict[str, type[Job]] = {
    "refresh-corpus": RefreshOptions,
    "continued-pretraining": PretrainingOptions,
    "fine-tune": FineTuneOptions,
    "train-tokenizer": TokenizerOptions,
    "end-to-end": EndToEndOptions,
    "lcqmc-experiment": ExperimentOptions,
}
