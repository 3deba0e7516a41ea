"""Why a training ended without a result, stored in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from albert.pretraining.settings import FAILURE_FILE
from data.errors import ConfigError, UserError
from data.files import write_text


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
                write_text(path, json.dumps(asdict(_describe(error)), ensure_ascii=False) + "\n")
        raise


def _describe(error: BaseException) -> Failure:
    if not isinstance(error, Exception):  # Ctrl-C, SIGTERM or Prefect's TerminationSignal, the second time
        return Failure("interrupted", "stopped at once: what came after its newest checkpoint is lost")
    if isinstance(error, UserError):
        return Failure("diverged" if isinstance(error, TrainingDiverged) else "failed", str(error))
    return Failure("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def read_failure(run_folder: Path) -> Failure | None:
    """How the run's last training failed; None if it did not, still runs, or was killed."""
    try:
        return Failure(**json.loads((run_folder / FAILURE_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget_failure(run_folder: Path) -> None:
    """Remove the record of a failure before the run is trained again."""
    (run_folder / FAILURE_FILE).unlink(missing_ok=True)
