"""What a pretraining run leaves behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic_core import to_jsonable_python

from albert.evaluation import LayerChange, Probe
from albert.pretraining.audits import Audits
from albert.pretraining.settings import RESULT_FILE
from albert.pretraining.state import Event, Metrics
from data.files import write_text
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

    def evaluations(self) -> list[Metrics]:
        """Held-out records, the first before any step."""
        return [record for record in self.history if "held_out_mlm_loss" in record]


def write_result(result: PretrainResult) -> None:
    """Keep the result in the run's folder."""
    text = json.dumps(to_jsonable_python(result), indent=1)
    write_text(result.run_folder / RESULT_FILE, text + "\n")


def read_result(run_folder: Path) -> PretrainResult:
    """The result in a run's folder. Raises InputError if it is of another version."""
    file = run_folder / RESULT_FILE
    return parse(PretrainResult, json.loads(file.read_text(encoding="utf-8")), str(file))
