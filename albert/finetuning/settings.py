"""TODO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from albert.tasks import Kind, Task
from data.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """What to compare, on what, and how."""

    task: Task
    train: Path | None = None  # None: for a kind that trains nothing
    dev: Path
    test: Path | None = None
    models: tuple[Path, ...]
    names: tuple[str, ...] | None = None  # of the models in tables; None: their folders'
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    epochs: int = 3
    batch_size: int = 32  # examples
    learning_rates: tuple[float, ...] = (1e-4,)  # albert_zh's for LCQMC; of several the best on dev
    warmup_share: float = 0.1
    max_restarts: int = 2
    max_seq_length: int = 128
    precision: str = "bf16"

    def __post_init__(self):
        if not self.models:
            raise ConfigError("no model to fine-tune: pass --model with a checkpoint folder")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: give one or more, each once")
        if self.names is not None and len(self.names) != len(self.models):
            raise ConfigError(f"{len(self.names)} names for {len(self.models)} models")
        if self.train is None and self.task.kind is not Kind.SIMILARITY:
            raise ConfigError(f"no training file for {self.task.name}: pass --train")
        for name, low, high in (
            ("epochs", 1, 1000),
            ("batch_size", 1, 4096),
            ("max_seq_length", 8, 512),
            ("max_restarts", 0, 10),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be from {low} to {high}")
        if not self.learning_rates:
            raise ConfigError("no learning rate: give one or more")
        for rate in self.learning_rates:
            if not 0 < rate < 1:
                raise ConfigError(f"learning_rate={rate}: it must be more than 0 and less than 1")

    def model_names(self) -> tuple[str, ...]:
        """A short name for each model, each once."""
        names = list(self.names or [_short_name(path) for path in self.models])
        return tuple(n if names.count(n) == 1 else f"{n} ({i})" for i, n in enumerate(names, 1))

    @property
    def split_paths(self) -> dict[str, Path]:
        paths = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: path for name, path in paths.items() if path is not None}


def _short_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if path.name.startswith("checkpoint-") else path.name
