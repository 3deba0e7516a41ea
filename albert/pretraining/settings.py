"""What a pretraining run is asked to do, and what it leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from albert.batching import Phase
from albert.evaluation import LayerChange, Probe
from albert.model import Share
from albert.optim import OPTIMIZERS, SCHEDULES, OptimizerName, ScheduleName
from data.errors import ConfigError

SETTINGS_FILE, METRICS_FILE = "settings.json", "metrics.jsonl"
RESULT_FILE, FAILURE_FILE = "result.json", "failure.json"
# what a run may be gone on with under another value
FREE_TO_CHANGE = (
    "log_every",
    "checkpoint_every",
    "keep_checkpoints",
    "resume",
    "activation_checkpointing",
    "tensorboard",
    "deterministic",
)
_RANGES = {
    "steps": (1, 10**9),
    "batch_tokens": (128, 10**9),
    "accumulate": (1, 10**6),
    "learning_rate": (1e-12, 10),
    "reference_batch_tokens": (1, 10**10),
    "warmup_share": (0, 1),
    "weight_decay": (0, 1),
    "clip_norm": (1e-6, 1e6),
    "sop_weight": (0, 100),
    "held_out_share": (1e-6, 0.9),
    "held_out_tokens": (1, 10**9),
    "evaluate_every": (1, 10**9),
    "checkpoint_every": (1, 10**9),
    "patience": (1, 10**6),
    "max_forgetting": (0, 100),
    "log_every": (1, 10**9),
    "keep_checkpoints": (1, 10**6),
    "seed": (0, 2**31),
}
_CHOICES = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "masking": ("dynamic", "static"),
    "precision": ("bf16", "fp32"),
    "resume": ("auto", "never"),
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """A second corpus of a run, and its share: of the tokens where it is mixed in, of the steps where it
    follows.
    """

    name: str
    shards: tuple[Path, ...]
    share: float
    held_out_share: float = 0.02

    def __post_init__(self):
        if not 0 < self.share < 1:
            raise ConfigError(f"{self.name}:{self.share:g}: a share must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """What to train, on what, and how. Paths are of the run's own folder, shards and tokenizer."""

    run_folder: Path
    shards: tuple[Path, ...]
    mix: tuple[Corpus, ...] = ()  # replayed beside the shards, by tokens
    then: Corpus | None = None  # takes the place of the shards in the last steps
    tokenizer_folder: Path | None = None  # its files go into every checkpoint
    init: str = "tiny"  # a preset's name (random weights), a checkpoint, or hf:REPO
    share: Share | None = None  # give layers parameters of their own; None: as the start has it
    num_hidden_layers: int | None = None  # more layers, tiled from the start's; None: as many
    steps: int = 1000
    batch_tokens: int = 4096  # to a step, over all processes
    accumulate: int | None = None  # parts a step is computed in; None: as many as processes
    optimizer: OptimizerName = "adamw"
    learning_rate: float | None = None  # None: by the optimiser, the batch and the kind of start
    reference_batch_tokens: int | None = None  # the batch learning_rate is meant for; None: this one
    schedule: ScheduleName = "linear"
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    masking: Literal["dynamic", "static"] = "dynamic"
    mask_rates: tuple[float, float] | None = None  # at the first and last step; None: the corpus's own
    sop_weight: float = 1.0  # of the sentence-order loss beside the MLM loss
    precision: Literal["bf16", "fp32"] = "bf16"
    activation_checkpointing: bool = False  # less memory, a third more operations
    deterministic: bool = False  # refuse operations whose result varies on a GPU
    held_out_share: float = 0.02
    held_out_tokens: int = 16_384  # at most, of each corpus, to an evaluation
    evaluate_every: int | None = None  # steps; None: eight times in the run
    checkpoint_every: int | None = None  # steps; None: with every evaluation
    patience: int | None = None  # stop after so many evaluations without a better one
    max_forgetting: float | None = None  # a mixed corpus's MLM loss may rise so far above its start's
    log_every: int = 10
    keep_checkpoints: int = 2  # the newest; the best one is kept besides
    tensorboard: bool = False  # write event files too
    resume: Literal["auto", "never"] = "auto"
    seed: int = 0

    def __post_init__(self):
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name}={value}: it must be from {low:g} to {high:g}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(choices)}")
        if self.mask_rates is not None and not all(0 < rate < 1 for rate in self.mask_rates):
            raise ConfigError(f"mask_rates={self.mask_rates}: both must lie between 0 and 1")
        if self.mask_rates is not None and self.masking == "static":
            raise ConfigError("mask_rates needs masking='dynamic': stored masks have a rate already")
        if sum(corpus.share for corpus in self.mix) >= 1:
            raise ConfigError("the shares of mix leave nothing for the corpus itself")
        if self.reference_batch_tokens is not None and self.learning_rate is None:
            raise ConfigError("reference_batch_tokens says what batch learning_rate is for: give that too")

    @property
    def evaluation_interval(self) -> int:
        return self.evaluate_every or max(1, math.ceil(self.steps / 8))

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or self.evaluation_interval

    @property
    def warmup_steps(self) -> int:
        return round(self.steps * self.warmup_share)

    @property
    def others(self) -> tuple[Corpus, ...]:
        """The corpora beside the run's own, in the order of its data."""
        return (*self.mix, self.then) if self.then else self.mix

    def phases(self) -> list[Phase]:
        """The shares of the run's own corpus and the others: in one stretch, or in two with `then`."""
        mixed = tuple(corpus.share for corpus in self.mix)
        own = 1 - sum(mixed)
        if self.then is None:
            return [Phase(self.steps, (own, *mixed))]
        switch = self.steps - max(round(self.steps * self.then.share), 1)
        return [Phase(switch, (own, *mixed, 0.0)), Phase(self.steps, (0.0, *mixed, own))]

    def to_record(self) -> dict[str, object]:
        """As JSON keeps them."""
        return json.loads(json.dumps(asdict(self), default=str))

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> PretrainSettings:
        """From what `to_record` made. Raises ConfigError for names that are no setting."""
        unknown = set(record) - {field.name for field in fields(cls)}
        if unknown:
            raise ConfigError(f"no settings of a pretraining run: {', '.join(sorted(unknown))}")
        values = dict(record)
        for name in ("run_folder", "tokenizer_folder"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        values["shards"] = tuple(map(Path, values["shards"]))
        values["mix"] = tuple(_corpus(corpus) for corpus in values.get("mix") or ())
        values["then"] = _corpus(values["then"]) if values.get("then") else None
        if values.get("mask_rates"):
            values["mask_rates"] = tuple(values["mask_rates"])
        return cls(**values)


def _corpus(record: Mapping[str, object]) -> Corpus:
    return Corpus(**{**record, "shards": tuple(map(Path, record["shards"]))})


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """What a run left behind."""

    run_folder: Path
    checkpoint: Path  # the newest, in transformers' format
    best_checkpoint: Path | None = None  # lowest held-out MLM loss; None: never within max_forgetting
    status: Literal["completed", "interrupted"]
    steps: int
    tokens: int
    tokens_per_second: float
    resumed_from: int  # step the run went on from; 0 for a fresh start
    history: list[dict[str, float]]
    notices: tuple[str, ...]
    learning_rate: float
    parameters: int
    layers: tuple[LayerChange, ...] = ()  # of the trained model, on a held-out batch
    events: tuple[Mapping[str, object], ...] = ()  # what went wrong on the way: step, kind, text
    audits: Mapping[str, object] | None = None  # of masks, sentence order, loader and memory

    @property
    def probe(self) -> Probe | None:
        """What the checkpoint that training began from knew; None for random weights."""
        return Probe.from_record(self.history[0]) if self.history else None

    def evaluations(self) -> list[dict[str, float]]:
        """Held-out records, the first before any step."""
        return [record for record in self.history if "held_out_mlm_loss" in record]

    def to_record(self) -> dict[str, object]:
        """As JSON keeps it."""
        return json.loads(json.dumps(asdict(self), default=str))

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> PretrainResult:
        """From what `to_record` made."""
        values = dict(record)
        for name in ("run_folder", "checkpoint", "best_checkpoint"):
            if values[name] is not None:
                values[name] = Path(values[name])
        values["notices"], values["events"] = tuple(values["notices"]), tuple(values["events"])
        values["layers"] = tuple(LayerChange(**change) for change in values["layers"])
        return cls(**values)


def read_settings(run_folder: Path) -> dict[str, object]:
    """The settings a run was begun with, as it keeps them."""
    return json.loads((run_folder / SETTINGS_FILE).read_text(encoding="utf-8"))
