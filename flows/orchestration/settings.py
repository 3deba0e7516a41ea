"""The options of every job, declared once: form, command line, recipe file and docs are made from them.

Knows neither Prefect nor torch, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import Field

from albert.finetuning import FineTuneRunning, TuningOptions
from albert.pretraining import TrainingOptions
from data.options import Commas, Integers, options, options_of
from data.refresh import RefreshSettings, load_recipe
from data.workspace import default_place

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Runner = Literal["processes", "dask"]
Place = Annotated[
    str, Field(description="Folder for everything made, or a URL such as s3://bucket/workspace (工作区).")
]


class Job(Protocol):
    """The options of any job."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def workspace(self) -> str:
        """Folder for everything made, or a URL."""


@options
class DriftOptions:
    """What follows where new documents differ from older ones."""

    pretrain_if: Annotated[
        str | None,
        Field(
            description="Condition of pretraining after the refresh, such as drift>0.2 (漂移); of drift, "
            "new_words, unknown, lengths, mlm_loss."
        ),
    ] = None
    steps: Annotated[int, Field(ge=1, description="Steps of that pretraining (步数).")] = 1000
    event_if: Annotated[str, Field(description="Condition of the event jixu.corpus.drifted (漂移事件).")] = (
        "drift>0.3"
    )


@options
class RefreshRunning:
    """Where a refresh runs."""

    runner: Annotated[Runner, Field(description="Processes of this machine, or a Dask cluster (集群).")] = (
        "processes"
    )
    dask_address: Annotated[
        str | None, Field(description="Address of its scheduler, such as tcp://10.0.0.1:8786.")
    ] = None
    task_hours: Annotated[
        float,
        Field(gt=0, le=10_000, description="Hours after which a task counts as hung (超时)."),
    ] = 12.0


@options
class RefreshOptions(RefreshSettings):
    """Turn raw text into a new version of a corpus, or none if nothing changed."""

    # a command resolves a URL to its copy, and the number of cores on the machine that it runs on
    workspace: Place = Field(default_factory=default_place)  # type: ignore[assignment]
    workers: Annotated[int | None, Field(ge=1, le=1024, description="Processes; one a core.")] = None  # type: ignore[assignment]
    recipe: Annotated[
        str | None,
        Field(description="YAML file with these options (配方); what is set beside it takes precedence."),
    ] = None
    dry_run: Annotated[bool, Field(description="Print what would change, and change nothing.")] = False
    drift: Annotated[DriftOptions, Field(description="What follows a drift (漂移).")] = Field(
        default_factory=DriftOptions
    )
    running: Annotated[RefreshRunning, Field(description="Where it runs.")] = Field(
        default_factory=RefreshRunning
    )

    def settings(self, typed: Collection[str] | None = None) -> RefreshSettings:
        """The settings of the refresh: a recipe's, with what is set here in their place.

        Args:
            typed: Dotted names of the options that were typed; by default those that differ from their
                defaults, as a form does not say which were.
        """
        recipe = load_recipe(Path(self.recipe)) if self.recipe else {}
        values: dict[str, Any] = {"corpus": self.corpus, **recipe, "workspace": Path(self.workspace)}
        base = RefreshSettings(**values)
        return _merge(self, base, typed)


def _merge(chosen: object, base: T, typed: Collection[str] | None, prefix: str = "") -> T:
    """`base` with the options of `chosen` that were typed."""
    changes: dict[str, Any] = {}
    for field in fields(base):
        name, value, old = f"{prefix}{field.name}", getattr(chosen, field.name), getattr(base, field.name)
        if is_dataclass(old) and not isinstance(old, type):
            changes[field.name] = _merge(value, old, typed, f"{name}.")
            continue
        default = options_of(type(chosen))[field.name].get_default(call_default_factory=True)
        is_set = name in typed if typed is not None else value != default
        if is_set and field.name != "workspace":
            changes[field.name] = value
    return replace(base, **changes)


@options
class PretrainingOptions(TrainingOptions):
    """Train on a corpus, from a checkpoint or random weights; the same run again resumes where it stopped."""

    corpus: Annotated[str, Field(description="Name of a corpus of the workspace (语料名).")]
    init: Annotated[str, Field(description="Checkpoint, hf:REPO, or a preset for random weights (起点).")] = (
        "tiny"
    )
    mix: Annotated[
        tuple[str, ...],
        Field(description="Second corpora as NAME:SHARE of the tokens, e.g. general:0.2 (混入)."),
    ] = ()
    then: Annotated[
        str | None, Field(description="Corpus of the last steps as NAME:SHARE, e.g. one of longer texts.")
    ] = None
    run: Annotated[str | None, Field(description="Name of the run; by default made from the settings.")] = (
        None
    )
    processes: Annotated[int, Field(ge=1, description="Processes on this machine, one a GPU (进程数).")] = 1
    workspace: Place = Field(default_factory=default_place)


@options
class CorporaOptions:
    """Corpora of the workspace that models are asked about."""

    domain: Annotated[
        str | None, Field(description="What all models but the first were pretrained on (领域语料).")
    ] = None
    general: Annotated[
        str | None, Field(description="General corpus, to measure what models forget of it (通用语料).")
    ] = None


@options
class FineTuneJobRunning(FineTuneRunning):
    """How the computation runs."""

    workers: Annotated[
        int | None, Field(ge=1, description="Seeds at a time; by default as many as cores, one on a GPU.")
    ] = None


@options
class FineTuneOptions(TuningOptions):
    """Fine-tune models on a labelled task under the same seeds and compare them."""

    task: Annotated[str, Field(description="A task that comes with jixu, or a YAML task file (任务).")]
    dev: Annotated[str, Field(description="Examples that choose the best epoch (开发集).")]
    model: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Checkpoints or hf:REPO, compared with the first (模型); NAME=PATH names "
            "one, NAME=PATH,PATH,PATH the pretraining runs of one recipe.",
        ),
    ]
    train: Annotated[str | None, Field(description="Training examples as published (训练集).")] = None
    test: Annotated[str | None, Field(description="Examples scored once, at the best epoch (测试集).")] = None
    primary: Annotated[
        str | None,
        Field(description="Name of the model that the verdict is about; by default the last (主要对比)."),
    ] = None
    run: Annotated[
        str | None, Field(description="Name of the report; by default made from the settings.")
    ] = None
    workspace: Place = Field(default_factory=default_place)
    running: Annotated[FineTuneJobRunning, Field(description="Precision, length, pooling, processes.")] = (
        Field(default_factory=FineTuneJobRunning)
    )
    corpora: Annotated[CorporaOptions, Field(description="Corpora that models are asked about (语料).")] = (
        Field(default_factory=CorporaOptions)
    )


@options
class TokenizerOptions:
    """Learn a vocabulary from a corpus or raw text."""

    corpus: Annotated[str | None, Field(description="Corpus of the workspace to learn from (语料名).")] = None
    source: Annotated[
        tuple[str, ...], Field(description="Or raw text: files, folders or globs (原始文本).")
    ] = ()
    kind: Annotated[
        Literal["wordpiece", "sentencepiece"], Field(description="Kind; wordpiece is BERT's (词表类型).")
    ] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=100, le=250_000, description="Most entries (词表大小).")] = 21128
    name: Annotated[str | None, Field(description="Name in the workspace; by default kind and size.")] = None
    workspace: Place = Field(default_factory=default_place)


@options
class TextOptions:
    """How the corpora of a whole run are made."""

    vocab_size: Annotated[
        int, Field(ge=100, le=250_000, description="Most entries of a trained vocabulary.")
    ] = 21128
    max_seq_length: Annotated[int, Field(ge=16, le=512, description="Most tokens of an instance.")] = 128
    copies: Annotated[
        int, Field(ge=1, le=100, description="Times each document is cut into instances anew.")
    ] = 1
    max_unknown_share: Annotated[
        float, Field(ge=0, le=1, description="Largest share of [UNK] among a corpus's tokens.")
    ] = 0.2


@options
class WholePretraining:
    """Both pretrainings of a whole run."""

    base_steps: Annotated[int, Field(ge=1, description="Steps on the general text (步数).")] = 1000
    batch_tokens: Annotated[int, Field(ge=128, description="Tokens of a step.")] = 4096
    learning_rate: Annotated[
        float | None, Field(gt=0, description="Peak rate of both; by default from batch and start.")
    ] = None


@options
class EndToEndOptions:
    """Raw text to evaluation report: tokenizer, corpora, base model, continued pretraining, comparison."""

    demo: Annotated[bool, Field(description="Run on the samples that come with jixu.")] = False
    general: Annotated[
        tuple[str, ...], Field(description="General raw text, for the base model (通用语料).")
    ] = ()
    domain: Annotated[tuple[str, ...], Field(description="Raw text of the field (领域语料).")] = ()
    task: Annotated[str | None, Field(description="Name or YAML file of the task that judges (任务).")] = None
    train: Annotated[str | None, Field(description="Its training examples (训练集).")] = None
    dev: Annotated[str | None, Field(description="Its dev examples (开发集).")] = None
    test: Annotated[str | None, Field(description="Its test examples (测试集).")] = None
    init: Annotated[str, Field(description="Preset, or a checkpoint in place of the base model (起点).")] = (
        "tiny"
    )
    tokenizer: Annotated[
        str | None, Field(description="Vocabulary; by default trained, or the checkpoint's (词表).")
    ] = None
    steps: Annotated[int, Field(ge=1, description="Steps on the text of the field (步数).")] = 1000
    workers: Annotated[int | None, Field(ge=1, description="Processes; by default one a core.")] = None
    workspace: Place = Field(default_factory=default_place)
    text: Annotated[TextOptions, Field(description="How the corpora are made.")] = Field(
        default_factory=TextOptions
    )
    pretraining: Annotated[WholePretraining, Field(description="Both pretrainings.")] = Field(
        default_factory=WholePretraining
    )
    fine_tuning: Annotated[TuningOptions, Field(description="The fine-tuning that judges.")] = Field(
        default_factory=TuningOptions
    )


@options
class ExperimentOptions:
    """Find out which part of a recipe of continued pretraining helps, and which hurts."""

    general: Annotated[
        tuple[str, ...], Field(min_length=1, description="General raw text, for the base models (通用语料).")
    ]
    train: Annotated[str, Field(description="Training examples of the task (训练集).")]
    dev: Annotated[str, Field(description="Its dev examples (开发集).")]
    test: Annotated[str, Field(description="Its test examples (测试集).")]
    experiment: Annotated[
        Literal["lcqmc", "law", "reviews"],
        Field(description="Ladder of recipes; the text of lcqmc is the task's own."),
    ] = "lcqmc"
    domain: Annotated[
        tuple[str, ...], Field(description="Raw text of the field, for law and reviews (领域语料).")
    ] = ()
    task: Annotated[
        str | None, Field(description="Name or YAML file of the task; by default the experiment's (任务).")
    ] = None
    tokenizer: Annotated[
        str | None,
        Field(description="vocab.txt (the flawed control needs BERT's); by default trained."),
    ] = None
    architectures: Annotated[
        tuple[Literal["albert", "bert"], ...],
        Commas,
        Field(min_length=1, description="Architectures of similar cost (模型)."),
    ] = ("albert", "bert")
    scale: Annotated[
        float, Field(gt=0, description="Scale of all sizes; 1 is 60 to 80 CPU minutes an architecture.")
    ] = 1.0
    seeds: Annotated[
        Integers | None,
        Field(description="Seeds of fine-tuning (随机种子); by default ten, or five if slow."),
    ] = None
    workers: Annotated[int | None, Field(ge=1, description="Processes; by default one a core.")] = None
    workspace: Place = Field(default_factory=default_place)


JOBS: dict[str, type[Job]] = {
    "refresh-corpus": RefreshOptions,
    "continued-pretraining": PretrainingOptions,
    "fine-tune": FineTuneOptions,
    "train-tokenizer": TokenizerOptions,
    "end-to-end": EndToEndOptions,
    "lcqmc-experiment": ExperimentOptions,
}
