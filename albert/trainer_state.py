"""Checkpoints of a run: the model in transformers' format, and beside it all that is needed to go on exactly.

A checkpoint is written under a temporary name, synced and renamed; its manifest holds the checksum of every
file, so that a damaged one is noticed and the one before it is used.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from albert.batching import Cursor
from albert.checkpoints import save_model
from albert.heads import PretrainingModel
from data.files import sha256, sync, write_text

STATE_FILE, TENSORS_FILE, MANIFEST_FILE = "trainer_state.json", "trainer_state.safetensors", "manifest.json"
_CPU_GENERATOR, _CUDA_GENERATOR = "rng", "rng_cuda"


@dataclass
class TrainerState:
    """Where a run stands after `step` steps."""

    step: int = 0
    tokens: int = 0
    cursor: Cursor = Cursor()
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)  # training and evaluation records by step


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"checkpoint-{step}"


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Checkpoint folders of a run, the newest first."""
    found = [p for p in run_folder.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: -int(path.name.removeprefix("checkpoint-")))


def is_whole(folder: Path) -> bool:
    """Whether every file the checkpoint's manifest names is there as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        return all(sha256(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    return optimizer.param_groups[0]["params"][0].device


def generator_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The random-number state training on `device` draws from: on a GPU, dropout draws from the GPU's own."""
    states = {_CPU_GENERATOR: torch.get_rng_state()}
    if device.type == "cuda":
        states[_CUDA_GENERATOR] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put `generator_states` back: the GPU's on a GPU alone, and where it was saved."""
    torch.set_rng_state(states[_CPU_GENERATOR])
    if device.type == "cuda" and _CUDA_GENERATOR in states:
        torch.cuda.set_rng_state(states[_CUDA_GENERATOR], device)


def save_checkpoint(
    run_folder: Path,
    model: PretrainingModel,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    tokenizer_folder: Path | None,
) -> Path:
    """Write checkpoint-<step> as a whole; returns its folder."""
    folder = checkpoint_folder(run_folder, state.step)
    temporary = run_folder / f"writing-{state.step}"
    shutil.rmtree(temporary, ignore_errors=True)
    save_model(model, temporary, tokenizer_folder)
    tensors = generator_states(_device_of(optimizer))
    for number, values in optimizer.state_dict()["state"].items():
        tensors.update({f"{number}.{name}": value.detach().cpu() for name, value in values.items()})
    save_file(tensors, temporary / TENSORS_FILE)
    write_text(temporary / STATE_FILE, json.dumps(asdict(state)) + "\n")
    manifest = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
    write_text(temporary / MANIFEST_FILE, json.dumps(manifest, indent=2) + "\n")
    for path in temporary.iterdir():
        sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
    sync(run_folder)
    return folder


def load_trainer_state(folder: Path, optimizer: torch.optim.Optimizer) -> TrainerState:
    """Put optimiser and random-number state back as they were; returns where the run stood.

    The model that `optimizer` trains must be on its device already: the state goes to where the parameters
    are.
    """
    tensors = load_file(folder / TENSORS_FILE)
    states = {name: tensors.pop(name) for name in (_CPU_GENERATOR, _CUDA_GENERATOR) if name in tensors}
    restore_generators(states, _device_of(optimizer))
    values: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        values.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})
    content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    return TrainerState(**{**content, "cursor": Cursor(*content["cursor"])})


def remove_old_checkpoints(run_folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what a killed writer left."""
    for folder in list_checkpoints(run_folder)[keep:]:
        shutil.rmtree(folder)
    for folder in run_folder.glob("writing-*"):
        shutil.rmtree(folder)
