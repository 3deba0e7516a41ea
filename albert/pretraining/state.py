"""Checkpoints of a run: the model in transformers' format, and all that an exact resume needs.

A checkpoint is written under a temporary name, synced and renamed; its manifest holds the checksum of every
file, so that a damaged one is noticed and the one before it is used. No random-number state is stored: what
is drawn in a step is a function of the seed and the step's number.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ConfigDict
from pydantic_core import to_jsonable_python
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from albert.batching import DataState, Shape
from albert.checkpoints import save_pretrained, save_tensors
from albert.model import PretrainingObjective
from albert.pretraining.sentinel import Trend
from data.errors import InputError
from data.files import read_json, sha256, sync, write_json, write_text
from data.options import parse

STATE_FILE, TENSORS_FILE, MANIFEST_FILE = "trainer_state.json", "trainer_state.safetensors", "manifest.json"
BEGIN_ANEW = "give this run another --run name, or --resume never to begin anew"
_WRITING, _REPLACED = "writing-", "writing-replaced-"
_BOUNDARY = "boundary."  # parameters of the span-boundary head, which is no part of the model
Metrics = dict[str, int | float]  # a record of the history: the step, and figures by name


@dataclass(frozen=True, slots=True)
class Event:
    """Something that went wrong in a run, and what was done."""

    step: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far."""

    step: int
    loss: float


class Figures(NamedTuple):
    """Sums over steps, or over one corpus in a step."""

    mlm_loss: float = 0.0
    mlm_correct: float = 0.0
    mlm_count: float = 0.0
    sop_correct: float = 0.0
    sop_count: float = 0.0
    boundary_loss: float = 0.0  # over the masked positions
    contrast_loss: float = 0.0  # weighted by them


@dataclass
class TrainerState:
    """Where a run stands after `step` steps."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int = 0
    tokens: int = 0
    data: DataState = DataState()
    seconds: float = 0.0
    history: list[Metrics] = field(default_factory=list)  # of training and evaluation, by step
    sums: Figures = Figures()  # of the steps since the last record of training
    events: list[Event] = field(default_factory=list)
    rate_scale: float = 1.0  # halved by each rollback
    rollbacks: int = 0
    best: Best | None = None
    stale_evaluations: int = 0  # since the best one
    trends: dict[int, Trend] = field(default_factory=dict)  # of the sentinel, by corpus
    processes: int = 1  # how many trained when it was written
    scaler: dict[str, int | float] = field(default_factory=dict)  # of fp16 gradients
    graph_shapes: tuple[Shape, ...] = ()  # of the batches that shaped the CUDA graphs
    precision: str = ""  # what "auto" was when the run began: another machine goes on with it


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"checkpoint-{step}"


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Checkpoint folders of a run, the newest first."""
    found = [p for p in run_folder.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: -step_of(path))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def is_whole(folder: Path) -> bool:
    """Whether every file in the checkpoint's manifest is there and undamaged."""
    try:
        manifest = read_json(folder / MANIFEST_FILE)
        return all(sha256(folder / name) == digest for name, digest in manifest.items())
    except (OSError, InputError):
        return False


def save_checkpoint(
    run_folder: Path,
    objective: PretrainingObjective,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    tokenizer_folder: Path | None,
) -> Path:
    """Write checkpoint-<step> atomically; returns its folder.

    Raises InputError when it cannot be written, as on a full disk; earlier checkpoints stay as they were.
    """
    folder = checkpoint_folder(run_folder, state.step)
    temporary, replaced = (run_folder / f"{start}{folder.name}" for start in (_WRITING, _REPLACED))
    remove_unfinished(run_folder)
    try:
        save_pretrained(objective.model, tokenizer_folder, temporary)
        save_tensors(_tensors(objective, optimizer), temporary / TENSORS_FILE)
        sync(temporary / TENSORS_FILE)  # the other files are synced as they are written
        write_text(temporary / STATE_FILE, json.dumps(to_jsonable_python(state)) + "\n")
        manifest = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / MANIFEST_FILE, manifest)
        if folder.is_dir():  # removing takes longer than renaming, and this process may be killed
            os.replace(folder, replaced)
        os.replace(temporary, folder)
        sync(run_folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        whole = next(filter(is_whole, list_checkpoints(run_folder)), None)
        left = f"{whole.name} is whole" if whole else "there is none before it"
        raise InputError(
            f"checkpoint-{state.step} could not be written to {run_folder}: {error}; {left}. Make room and "
            "run the same command again"
        ) from None
    return folder


def _tensors(objective: PretrainingObjective, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state, by the parameter's number and the value's name, and the span-boundary head."""
    values = optimizer.state_dict()["state"]
    tensors = {f"{number}.{name}": value.cpu() for number, of in values.items() for name, value in of.items()}
    if objective.boundary is not None:
        head = objective.boundary.state_dict(prefix=_BOUNDARY)
        tensors |= {name: value.cpu() for name, value in head.items()}
    return tensors


def load_tensors(folder: Path, objective: PretrainingObjective, optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimiser's state and the span-boundary head.

    Move the model to its device first: the state follows the parameters.
    """
    tensors = load_file(folder / TENSORS_FILE)
    if objective.boundary is not None:
        for name, parameter in objective.boundary.named_parameters():
            parameter.detach().copy_(tensors.pop(_BOUNDARY + name))
    values: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        values.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})


def read_trainer_state(folder: Path) -> TrainerState:
    """Where a run stood at a checkpoint. Raises InputError if another version of jixu wrote other fields."""
    problem = f"{folder} is of another version of jixu: {BEGIN_ANEW}"
    return parse(TrainerState, read_json(folder / STATE_FILE), problem)


def remove_old_checkpoints(run_folder: Path, step: int, keep: int, best_step: int | None = None) -> None:
    """Remove all but the newest `keep` checkpoints up to `step` and the best one.

    Later ones are removed too, as the run was rolled back.
    """
    found = list_checkpoints(run_folder)
    newest = [folder for folder in found if step_of(folder) <= step][:keep]
    for folder in found:
        if folder not in (*newest, checkpoint_folder(run_folder, best_step or -1)):
            os.replace(folder, run_folder / f"{_WRITING}{folder.name}")  # else a kill may leave a part of it
    remove_unfinished(run_folder)


def remove_unfinished(run_folder: Path) -> None:
    """Remove what is left of checkpoints that a killed process was writing or removing; put back one that was
    being replaced.
    """
    for folder in run_folder.glob(f"{_WRITING}*"):
        place = run_folder / folder.name.removeprefix(_REPLACED)
        if place == folder or place.exists():
            shutil.rmtree(folder)
        else:
            os.replace(folder, place)
