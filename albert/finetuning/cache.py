"""Fine-tuning runs on disk by a digest of their inputs, so that a comparison resumes where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from albert.checkpoints import find_source
from albert.finetuning.training import Candidate, SeedRun
from albert.runtime import default_device, usual_precision
from data.files import sha256, write_bytes

_FORMAT = 4  # of the files; others are not read
# in a tuple: pydantic takes no config for a dataclass alone
_STORED = TypeAdapter(tuple[SeedRun], config=ConfigDict(arbitrary_types_allowed=True))


def run_key(candidate: Candidate, seed: int, learning_rate: float) -> str:
    """A digest of the inputs of a run: model, files, settings and seed."""
    settings = candidate.settings
    precision = settings.running.precision
    if precision == "auto":  # is the same run as with the format named
        precision = usual_precision(default_device())
    content = {
        "format": _FORMAT,
        "weights": candidate.checksum,
        "inputs": _inputs(candidate),
        "task": asdict(settings.task),
        "files": {name: sha256(path) for name, path in settings.split_paths.items()},
        "settings": {
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            **{name: value for name, value in asdict(settings.optimizer).items() if name != "sweep"},
            **asdict(settings.running),
            "precision": precision,
        },
        "seed": seed,
        "learning_rate": learning_rate,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _inputs(candidate: Candidate) -> str:
    """A digest of the model's configuration, and of tokens and answers, which may be in other files."""
    digest = hashlib.sha256(json.dumps(asdict(candidate.config), sort_keys=True).encode())
    if not candidate.is_own:  # its configuration here is only like its own
        digest.update(sha256(find_source(candidate.path, any_model=True).config).encode())
    for name, encoded in sorted(candidate.encoded.items()):
        digest.update(name.encode())
        for array in (encoded.input_ids, encoded.segment_b_start, encoded.targets):
            digest.update(str(array.shape).encode() + array.tobytes())
    return digest.hexdigest()


def save_run(run: SeedRun, path: Path) -> None:
    """Write a run as an .npz file: its arrays, and the rest as JSON that numbers them."""
    arrays: list[np.ndarray] = []

    def numbered(array: np.ndarray) -> dict[str, int]:
        arrays.append(array)
        return {"array": len(arrays) - 1}

    content = asdict(run)
    for predictions in filter(None, (content["dev"], content["test"])):
        del predictions["confidence"]  # many small arrays, which only `jixu predict` writes
    text = json.dumps([content], default=numbered, ensure_ascii=False)
    sink = io.BytesIO()
    np.savez_compressed(sink, *arrays, text=np.array(text))
    write_bytes(path, sink.getvalue())


def load_run(path: Path) -> SeedRun | None:
    """Read a run; None if there is none, or if another version of jixu wrote it."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        content = json.loads(
            str(file["text"]), object_hook=lambda one: file[f"arr_{one['array']}"] if "array" in one else one
        )
    try:
        return _STORED.validate_python(content)[0]
    except ValueError:
        return None
