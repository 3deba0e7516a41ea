"""The options of a pretraining run, each declared once. Needs neither torch nor Prefect."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from albert.learning_rate import OptimizerName, ScheduleName
from albert.model import Share
from data.errors import ConfigError, InputError
from data.files import read_json, write_json
from data.options import Floats, options, options_of, parse

SETTINGS_FILE, METRICS_FILE = "settings.json", "metrics.jsonl"
RESULT_FILE, FAILURE_FILE = "result.json", "failure.json"
START_FILE = "held_out_start.npz"  # what was measured of the held-out documents before the first step
# options of several jobs
Steps = Annotated[int, Field(ge=1, le=10**9)]
BatchTokens = Annotated[int | None, Field(ge=128, le=10**9)]
PeakRate = Annotated[float | None, Field(gt=0, le=10)]


@options
class OptimizerOptions:
    """The optimiser, and how it treats gradients and weights."""

    name: OptimizerName = "adamw"
    """Optimiser (优化器); LAMB suits large batches."""
    reference_batch_tokens: Annotated[int | None, Field(ge=1, le=10**10)] = None
    """Tokens of the batch that learning_rate is meant for: the rate is scaled from it by the square-root
    rule. By default the run's own batch."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Decay of all weights but biases and LayerNorm."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Largest norm of a step's gradient; longer ones are clipped."""


@options
class ScheduleOptions:
    """The learning rate over the steps."""

    name: ScheduleName = "linear"
    """Course of the rate after the warm-up: linear and polynomial fall to 0, wsd stays at the peak and decays
    over the last fifth."""
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the steps in which the rate rises to its peak."""


@options
class ObjectiveOptions:
    """What is predicted, and how much each loss weighs."""

    masking: Literal["dynamic", "static"] = "dynamic"
    """New masks in every epoch (动态遮盖), or the masks stored with the corpus."""
    mask_rates: Floats | None = None
    """Share of tokens masked at the first and at the last step, e.g. 0.3,0.15; by default the
    corpus's own."""
    sop_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Weight of the sentence-order loss beside the MLM loss."""
    contrast_weight: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Weight of the contrast of each text, read twice under dropout, with the batch's other texts
    (unsupervised SimCSE, 对比学习); 10 is common, 0 is none."""

    def __post_init__(self) -> None:
        if self.mask_rates is None:
            return
        if len(self.mask_rates) != 2 or not all(0.01 <= rate <= 0.99 for rate in self.mask_rates):
            raise ConfigError(f"mask_rates={self.mask_rates}: give two, both from 0.01 to 0.99")
        if self.masking == "static":
            raise ConfigError("mask_rates needs masking='dynamic': stored masks have a rate already")


@options
class EvaluationOptions:
    """When the held-out documents are evaluated, and what follows from it."""

    every: Annotated[int | None, Field(ge=1, le=10**9)] = None
    """Steps between evaluations; by default an eighth of the run."""
    held_out_tokens: Annotated[int, Field(ge=1, le=10**9)] = 16_384
    """Held-out tokens of each corpus that an evaluation measures."""
    full_tokens: Annotated[int, Field(ge=0, le=10**9)] = 131_072
    """Held-out tokens measured before the first and after the last step."""
    patience: Annotated[int | None, Field(ge=1, le=10**6)] = None
    """Evaluations without a better one after which training stops; by default never."""
    max_forgetting: Annotated[float | None, Field(ge=0, le=100)] = None
    """Nats by which a mixed corpus's held-out loss may rise while a checkpoint still counts as the best; by
    default unbounded."""


@options
class GrowthOptions:
    """A model larger than the one it starts from."""

    share: Share | None = None
    """Parameters that layers share; by default as in the starting checkpoint."""
    num_hidden_layers: Annotated[int | None, Field(ge=1)] = None
    """Number of layers, tiled from the start's; by default as many as it has. Fewer, if
    they share all parameters."""


@options
class RunningOptions:
    """How a step is computed, and what a run writes."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the operators (精度); auto: bf16 where it is faster, on older GPUs fp16."""
    accumulate: Annotated[int | None, Field(ge=1, le=10**6)] = None
    """Parts a step is computed in; by default one for each process."""
    activation_checkpointing: bool = False
    """Keep only the layers' inputs: less memory, a third more operations."""
    compress_gradients: bool = False
    """Exchange gradients between processes in bf16: half the bytes, rounded."""
    deterministic: bool = False
    """Refuse operations whose result varies on a GPU."""
    cuda_graphs: Literal["auto", "off"] = "auto"
    """Launch a step's kernels as one graph (CUDA 图), on one GPU; auto: where it gives the same gradients."""
    tracker: Literal["tensorboard", "mlflow", "wandb"] | None = None
    """Where the log goes too: event files for TensorBoard, or MLflow's or Weights & Biases' server, which
    their own variables name."""
    log_every: Annotated[int, Field(ge=1, le=10**9)] = 10
    """Steps between two lines of the log."""
    checkpoint_every: Annotated[int | None, Field(ge=1, le=10**9)] = None
    """Steps between checkpoints; by default one with each evaluation."""
    checkpoint_minutes: Annotated[float, Field(gt=0, le=10_000)] = 15.0
    """Minutes without a checkpoint before one is written (检查点)."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=10**6)] = 2
    """Newest checkpoints to keep; the best one is kept besides."""


# options that may change when a run resumes
FREE_TO_CHANGE = {
    "never_trained_share",
    "resume",
    "tokenizer_folder",  # a workspace that is published has a copy of it
    *(f"running.{name}" for name in options_of(RunningOptions)),
} - {"running.precision", "running.accumulate"}


@options
class TrainingOptions:
    """How to train: the options that a person sets."""

    steps: Steps = 1000
    """Optimiser steps of the whole run (步数)."""
    batch_tokens: BatchTokens = None
    """Tokens in a step, over all processes (批大小); by default 32768 on a GPU, 4096 on a CPU."""
    learning_rate: PeakRate = None
    """Peak learning rate (学习率); by default the square-root rule's: for batches of 4096 tokens AdamW 3e-4
    from random weights, else 5e-5, and LAMB 7.8e-5."""
    init_weights: Literal["random", "corpus"] = "random"
    """How the weights of a preset are initialised (初始权重): at random, or from the corpus's counts (word
    vectors, frequencies, attention to neighbours), which saves the first millions of tokens."""
    resume: Literal["auto", "never"] = "auto"
    """Resume from the run's last checkpoint, or discard what the run has."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Random seed (随机种子)."""
    optimizer: OptimizerOptions = OptimizerOptions()
    """Optimiser and regularisation."""
    schedule: ScheduleOptions = ScheduleOptions()
    """Learning rate over the steps."""
    objective: ObjectiveOptions = ObjectiveOptions()
    """Masking and the weights of losses."""
    evaluation: EvaluationOptions = EvaluationOptions()
    """Evaluations on held-out documents, early stopping."""
    growth: GrowthOptions = GrowthOptions()
    """A larger model than the start."""
    running: RunningOptions = RunningOptions()
    """Precision, memory, logs and checkpoints."""

    def __post_init__(self) -> None:
        if self.optimizer.reference_batch_tokens is not None and self.learning_rate is None:
            raise ConfigError("reference_batch_tokens says what batch learning_rate is for: give that too")

    @property
    def evaluation_interval(self) -> int:
        return self.evaluation.every or max(1, math.ceil(self.steps / 8))

    @property
    def warmup_steps(self) -> int:
        return round(self.steps * self.schedule.warmup_share)


@options
class Corpus:
    """A further corpus of a run."""

    name: str
    shards: Annotated[tuple[Path, ...], Field(min_length=1)]
    share: float  # of the tokens if it is mixed in, of the last steps if it follows
    held_out_share: float = 0.02  # of its documents, which are evaluated on

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"{self.name}:{self.share:g}: a share must lie between 0 and 1")


@options
class PretrainSettings(TrainingOptions):
    """What to train, on what, and how."""

    run_folder: Path
    shards: Annotated[tuple[Path, ...], Field(min_length=1)]
    mix: tuple[Corpus, ...] = ()  # trained on beside the shards
    then: Corpus | None = None  # replaces the shards in the last steps
    tokenizer_folder: Path | None = None  # its files go into every checkpoint
    init: str = "tiny"  # a preset's name (random weights), a checkpoint, or hf:REPO
    init_sha256: str | None = None  # of a checkpoint's weights
    held_out_share: Annotated[float, Field(ge=1e-6, le=0.9)] = 0.02
    never_trained_share: Annotated[float, Field(ge=0, le=0.9)] = 0.0  # of all documents; may be larger

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(corpus.share for corpus in self.mix) >= 1:
            raise ConfigError("the shares of mix leave nothing for the corpus itself")

    @property
    def others(self) -> tuple[Corpus, ...]:
        """The corpora beside the run's own, in the order of its data."""
        return (*self.mix, self.then) if self.then else self.mix


def read_settings(path: Path) -> PretrainSettings:
    """The settings in a run's folder or settings file. Raises InputError if it has none of this version."""
    file = path / SETTINGS_FILE if path.is_dir() else path
    problem = (
        f"{file} holds no settings of this version of jixu: end the run with the version that began it, or "
        "begin anew with --resume never"
    )
    try:
        content = read_json(file)
    except InputError as error:
        raise InputError(f"{problem}: {error}") from None
    return parse(PretrainSettings, content, problem)


def write_settings(settings: PretrainSettings, file: Path) -> None:
    """Keep settings as JSON, for `read_settings`."""
    write_json(file, to_jsonable_python(settings))
