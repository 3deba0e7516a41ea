"""Why a training ended without a result, kept in its run's folder for whoever asks later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from albert.pretraining.settings import FAILURE_FILE
from data.errors import ConfigError, InputError
from data.files import write_text


class TrainingDiverged(ConfigError):
    """Training fell apart more often than it may go back."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a training ended that came to no result."""

    status: Literal["failed", "diverged", "interrupted"]
    reason: str  # one line for a person


@contextmanager
def failure_kept(run_folder: Path) -> Iterator[None]:
    """Write down what ends the block. Of several processes the reason of the first one stands: the others end
    because it is gone.
    """
    try:
        yield
    except BaseException as error:
        path = run_folder / FAILURE_FILE
        if not path.exists():
            with suppress(OSError):  # a full disk has no room for it
                write_text(path, json.dumps(asdict(_describe(error)), ensure_ascii=False) + "\n")
        raise


def _describe(error: BaseException) -> Failure:
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", "stopped at once, without a checkpoint of its last steps")
    if isinstance(error, ConfigError | InputError):
        return Failure("diverged" if isinstance(error, TrainingDiverged) else "failed", str(error))
    return Failure("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def read_failure(run_folder: Path) -> Failure | None:
    """How the run's last training failed; None where it did not, goes on, or was killed."""
    try:
        return Failure(**json.loads((run_folder / FAILURE_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget_failure(run_folder: Path) -> None:
    """To be called before the run is trained again."""
    (run_folder / FAILURE_FILE).unlink(missing_ok=True)
