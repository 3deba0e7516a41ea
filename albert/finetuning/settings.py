"""Options of fine-tuning: which models to compare on which task, and how to train them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from albert import tasks  # whose TaskData loads numpy, which --help can do without
from albert.tasks import Kind, Pooling, Task, load_task
from data.errors import ConfigError
from data.options import Commas, Words, options

# small tasks need more steps, up to 20 epochs (Mosbach et al. 2021, section 5), large ones 3 (Devlin et al.)
FEWEST_STEPS = 1000
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
# published models take the smaller rates (Devlin et al. 2019), models that have read little the larger ones
SWEEP = (5e-5, 2e-4, 8e-4)
SWEPT_EXAMPLES = 10_000  # most training examples with which the default is to try several rates
USUAL_RATE = 1e-4  # albert_zh's for LCQMC
USUAL_POOLING: Pooling = "mean"  # docs/fine-tuning.md has the figures


@options
class FineTuneOptimizer:
    """How a model is optimized beside its learning rate."""

    sweep: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Commas] = ()
    """Learning rates to choose from on dev with the first seed"""
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the steps in which the rate rises to its peak"""
    max_restarts: Annotated[int, Field(ge=0, le=10)] = 2
    """Fresh starts allowed while a model stays at chance level"""
    patience: Annotated[int, Field(ge=1, le=1000)] = 5
    """Epochs without a gain on dev after which training ends"""


@options
class FineTuneRunning:
    """How the computation runs."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Number format of the operators; auto: bf16 where it is faster"""
    max_seq_length: Annotated[int, Field(ge=8, le=512)] = 128
    """Maximum tokens per example; longer ones are truncated"""
    pooling: Annotated[
        Literal["auto", "cls", "mean", "cls+mean"],
        Field(
            description="What a text's label, number or score is read from: its first token, the mean, or "
            f"both; auto: the task's, else {USUAL_POOLING}. cls needs no code of its own in transformers"
        ),
    ] = "auto"


@options
class TuningOptions:
    """How every model is fine-tuned."""

    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Commas] | None = None
    """Seeds to train every model with, separated by commas (随机种子); by default ten, or five if the first
    run takes a minute"""
    epochs: Annotated[
        int | None,
        Field(
            ge=1,
            le=1000,
            description="Maximum number of epochs; the best on dev counts (轮数); by default for "
            f"{FEWEST_STEPS:,} steps, {FEWEST_EPOCHS} to {MOST_EPOCHS}",
        ),
    ] = None
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    """Examples in a step"""
    learning_rate: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Peak learning rate (学习率); by default the best on dev of "
            f"{', '.join(f'{rate:g}' for rate in SWEEP)}, over {SWEPT_EXAMPLES:,} examples {USUAL_RATE:g}",
        ),
    ] = None
    baselines: Literal["yes", "no"] = "yes"
    """Whether simple methods and the first model from random weights are scored too (基线)"""
    drop_overlap: bool = False
    """Leave out training examples that are, identical or nearly so, in dev or test (去重)"""
    optimizer: FineTuneOptimizer = FineTuneOptimizer()
    """Rates to try, warmup and restarts"""
    running: FineTuneRunning = FineTuneRunning()
    """Precision, length of the examples and pooling"""

    def __post_init__(self) -> None:
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise ConfigError(f"seeds={self.seeds}: give one or more, each once")
        if self.learning_rate is not None and self.optimizer.sweep:
            raise ConfigError("give learning_rate or optimizer.sweep: one rate, or several to choose from")

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The rates to choose from on dev."""
        return self.optimizer.sweep or (self.learning_rate or USUAL_RATE,)


@options
class FineTuneSettings(TuningOptions):
    """Fine-tune models on a labelled task under the same seeds and compare them."""

    # one that comes with jixu, a YAML task file, or a name of yours
    task: Annotated[Task, BeforeValidator(lambda task: load_task(task) if isinstance(task, str) else task)]
    train: Path | None = None  # examples as the task's publisher has them, as in dev and test
    dev: Path | None = None  # chooses the best epoch; without it, and without test, both are parts of train
    test: Path | None = None  # is scored once, at the best epoch
    models: tuple[Path, ...]  # checkpoint folders or hf:REPO; each is compared with the first
    names: Words | None = None  # of the models in tables; those of one name are runs of one recipe
    primary: str | None = None  # name of the model that the verdict is about; by default the last

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models:
            raise ConfigError("no model to fine-tune: pass --model with a checkpoint folder")
        if self.names is not None and len(self.names) != len(self.models):
            raise ConfigError(f"{len(self.names)} names for {len(self.models)} models")
        if not all(name.strip("_ ") for name in self.names or ()):
            raise ConfigError(f"names={self.names}: a model has an empty name")
        for name, numbers in self.recipes().items():
            if len({_run_of(self.models[at]) for at in numbers}) < len(numbers):
                raise ConfigError(f"{name} names one pretraining run twice: of each, one checkpoint counts")
        kind = self.task.kind
        pooling = self.task.pooling or "" if self.running.pooling == "auto" else self.running.pooling
        if kind in (Kind.SPAN, Kind.TOKENS, Kind.SIMILARITY) and "cls" in pooling:
            what = "the mean" if kind is Kind.SIMILARITY else "every token"
            raise ConfigError(f"pooling={pooling}: a task of kind {kind} is read from {what}")
        if self.train is None and kind is not Kind.SIMILARITY:
            raise ConfigError(f"no training file for {self.task.name}: pass --train")
        if self.train is None and self.dev is None:
            raise ConfigError(f"no file of {self.task.name}: pass --dev")
        others = list(self.recipes())[1:]
        if self.primary is not None and self.primary not in others:
            raise ConfigError(
                f"primary={self.primary!r} is not a model compared with the first; "
                f"those are {', '.join(others) or 'none'}"
            )

    def fitted(self, data: tasks.TaskData) -> FineTuneSettings:
        """The settings with what the task decides: pooling, epochs and rates."""
        examples = len(data.splits["train"].examples) if "train" in data.splits else 0
        steps = max(math.ceil(examples / self.batch_size), 1)
        epochs = min(max(math.ceil(FEWEST_STEPS / steps), FEWEST_EPOCHS), MOST_EPOCHS)
        is_swept = self.learning_rate is None and 0 < examples <= SWEPT_EXAMPLES
        sweep = self.optimizer.sweep or (SWEEP if is_swept else ())
        pooling = self.running.pooling
        if pooling == "auto":
            pooling = self.task.pooling or USUAL_POOLING
        return replace(
            self,
            running=replace(self.running, pooling=pooling),
            epochs=self.epochs or epochs,
            optimizer=replace(self.optimizer, sweep=sweep),
        )

    def model_names(self) -> tuple[str, ...]:
        """A unique short name for each model: of several with one name, their number among them."""
        names = list(self.names or map(short_name, self.models))
        of_name = [names[:i].count(name) for i, name in enumerate(names, 1)]
        return tuple(n if names.count(n) == 1 else f"{n} ({i})" for n, i in zip(names, of_name, strict=True))

    def recipes(self) -> dict[str, list[int]]:
        """The models by the row of the comparison: those that were given one name are runs of one recipe."""
        names = self.names or self.model_names()
        return {name: [at for at, other in enumerate(names) if other == name] for name in names}

    def primary_model(self) -> str | None:
        """The model whose difference to the first the verdict is about, if there is any."""
        _, *others = self.recipes()
        return self.primary or (others[-1] if others else None)

    @property
    def split_paths(self) -> dict[str, Path]:
        paths = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: path for name, path in paths.items() if path is not None}


def _run_of(checkpoint: Path) -> Path:
    """The folder of the pretraining run whose checkpoint it is; the checkpoint itself if it is not in one."""
    place = checkpoint.resolve()
    is_in_run = place.match("checkpoint-[0-9]*") and (place.parent / "settings.json").is_file()
    return place.parent if is_in_run else place


def short_name(path: Path) -> str:
    """A checkpoint's name in tables."""
    return f"{path.parent.name}/{path.name}" if path.name.startswith("checkpoint-") else path.name


def parse_models(texts: Sequence[str]) -> tuple[list[Path], list[str] | None]:
    """The paths and names of models, each typed as PATH, or as NAME=PATH,PATH for runs of one recipe.

    >>> parse_models(["base", "law=a,b"])
    ([PosixPath('base'), PosixPath('a'), PosixPath('b')], ['base', 'law', 'law'])
    """
    named = [text.partition("=") if "=" in text and not Path(text).exists() else None for text in texts]
    if not any(named):
        return [Path(text) for text in texts], None
    names = [p[0] if p else short_name(Path(text)) for text, p in zip(texts, named, strict=True)]
    models = []
    for text, parts, name in zip(texts, named, names, strict=True):
        whole = Path(parts[2] if parts else text)  # may have a comma of its own
        paths = [Path(path) for path in parts[2].split(",")] if parts and not whole.exists() else [whole]
        # a model without a name is no run of another one whose folder is called the same
        name = name if parts or names.count(name) == 1 else text
        models += [(path, name) for path in paths]
    return [path for path, _ in models], [name for _, name in models]
