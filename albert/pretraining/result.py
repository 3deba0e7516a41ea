"""What a pretraining run leaves in its folder: its result, or why it has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from pydantic_core import to_jsonable_python

from albert.evaluation import LayerChange, Probe
from albert.pretraining.audits import Audits
from albert.pretraining.settings import FAILURE_FILE, RESULT_FILE
from albert.pretraining.state import Event, Metrics
from data.errors import ConfigError, UserError
from data.files import read_json, write_json
from data.options import parse


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """What a run left behind."""

    run_folder: Path
    checkpoint: Path  # the newest, in transformers' format
    best_checkpoint: Path | None = None  # lowest held-out MLM loss; None: never within max_forgetting
    status: Literal["completed", "interrupted"]
    steps: int
    tokens: int
    passes: float  # how often its own corpus was read, about
    tokens_per_second: float
    resumed_from: int  # the step the run resumed at; 0 for a fresh start
    history: list[Metrics]
    notices: tuple[str, ...]
    learning_rate: float
    parameters: int
    layers: tuple[LayerChange, ...] = ()  # of the trained model, on a held-out batch
    events: tuple[Event, ...] = ()
    audits: Audits | None = None

    @property
    def probe(self) -> Probe | None:
        """What the starting checkpoint knew; None for random weights."""
        return Probe.from_record(self.history[0]) if self.history else None

    @property
    def finite_history(self) -> list[Metrics]:
        """The history without nan and infinity, which a diverging run records and JSON cannot hold."""
        return [{k: value for k, value in record.items() if isfinite(value)} for record in self.history]

    def evaluations(self) -> list[Metrics]:
        """Held-out records, the first before any step."""
        return [record for record in self.history if "held_out_mlm_loss" in record]


def write_result(result: PretrainResult) -> None:
    """Keep the result in the run's folder."""
    write_json(result.run_folder / RESULT_FILE, to_jsonable_python(result))


def read_result(run_folder: Path | str) -> PretrainResult:
    """The result in a run's folder. Raises InputError if it is of another version."""
    file = Path(run_folder) / RESULT_FILE
    return parse(PretrainResult, read_json(file), str(file))


class TrainingDiverged(ConfigError):
    """Training diverged more often than it may be rolled back."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a training without a result ended."""

    status: Literal["failed", "diverged", "interrupted"]
    reason: str  # one line for a person


@contextmanager
def record_failure(run_folder: Path) -> Iterator[None]:
    """Record the error that ends the block. The first process to fail wins: the others fail because of it."""
    try:
        yield
    except BaseException as error:
        path = run_folder / FAILURE_FILE
        if not path.exists():
            with suppress(OSError):  # a full disk has no room for it
                write_json(path, asdict(_describe(error)))
        raise


def _describe(error: BaseException) -> Failure:
    if not isinstance(error, Exception):  # Ctrl-C, SIGTERM or Prefect's TerminationSignal, the second time
        return Failure("interrupted", "stopped at once: what came after its newest checkpoint is lost")
    if isinstance(error, UserError):
        return Failure("diverged" if isinstance(error, TrainingDiverged) else "failed", str(error))
    return Failure("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def read_failure(run_folder: Path) -> Failure | None:
    """How the run's last training failed; None if it did not, still runs, or was killed."""
    path = run_folder / FAILURE_FILE
    return Failure(**read_json(path)) if path.is_file() else None


def forget_failure(run_folder: Path) -> None:
    """Remove the record of a failure before the run is trained again."""
    (run_folder / FAILURE_FILE).unlink(missing_ok=True)
