"""Fine-tuning runs on disk by a digest of their inputs, so that a comparison resumes where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from albert.evaluation import SeedResult
from albert.finetuning.learner import Predictions
from albert.finetuning.training import Candidate, SeedRun
from albert.runtime import default_device, usual_precision
from data.files import sha256, write_bytes

_FORMAT = 3  # of the files; others are not read
_ARRAYS = ("right", "labels", "probabilities")
_RESULT = TypeAdapter(SeedResult)


def _precision(chosen: str) -> str:
    """The number format that a run has on this machine."""
    return usual_precision(default_device()) if chosen == "auto" else chosen


def run_key(candidate: Candidate, seed: int, learning_rate: float) -> str:
    """A digest of the inputs of a run: weights, files, settings and seed."""
    settings = candidate.settings
    content = {
        "format": _FORMAT,
        "weights": candidate.checksum,
        "task": asdict(settings.task),
        "files": {name: sha256_of(path) for name, path in settings.split_paths.items()},
        "settings": {
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "warmup_share": settings.optimizer.warmup_share,
            "max_restarts": settings.optimizer.max_restarts,
            "patience": settings.optimizer.patience,
            **asdict(settings.running),
            "precision": _precision(settings.running.precision),
            **({"drop_overlap": True} if settings.drop_overlap else {}),
        },
        "seed": seed,
        "learning_rate": learning_rate,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _inputs(candidate: Candidate) -> str:
    """A digest of the inputs beside weights and files: the model's configuration and the tokens."""
    digest = hashlib.sha256(json.dumps(asdict(candidate.config), sort_keys=True).encode())
    for name, encoded in sorted(candidate.encoded.items()):
        digest.update(name.encode())
        digest.update(encoded.input_ids.tobytes())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The checksum of a file, or of all files of a folder."""
    if path.is_file():
        return sha256(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    checksums = [(str(file.relative_to(path)), sha256(file)) for file in files]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def save_run(run: SeedRun, candidate: Candidate, path: Path) -> None:
    """Write a candidate's run as an .npz file."""
    arrays: dict[str, np.ndarray] = {}
    texts: dict[str, object] = {"result": asdict(run.result), "inputs": _inputs(candidate)}
    for split, one in (("dev", run.dev), ("test", run.test)):
        if one is None:
            continue
        texts[split] = {"answers": one.answers, "tags": one.tags}
        arrays |= {f"{split}/metric/{name}": values for name, values in one.statistics.items()}
        found = {f"{split}/{name}": getattr(one, name) for name in _ARRAYS}
        arrays |= {name: array for name, array in found.items() if array is not None}
    arrays["texts"] = np.frombuffer(json.dumps(texts, ensure_ascii=False).encode(), dtype=np.uint8)
    sink = io.BytesIO()
    np.savez_compressed(sink, **arrays)  # type: ignore[arg-type]  # taken for the option allow_pickle
    write_bytes(path, sink.getvalue())


def load_run(candidate: Candidate, path: Path) -> SeedRun | None:
    """Read a candidate's run; None if there is none, if it is damaged, or if it was made with another
    configuration or tokenizer.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
        texts = json.loads(content.pop("texts").tobytes())
        if texts["inputs"] != _inputs(candidate):
            return None
        return SeedRun(
            result=_RESULT.validate_python(texts["result"]),
            dev=_predictions("dev", texts["dev"], content),
            test=_predictions("test", texts["test"], content) if "test" in texts else None,
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _predictions(split: str, texts: dict[str, list], content: dict[str, np.ndarray]) -> Predictions:
    prefix = f"{split}/metric/"
    tags = texts["tags"]
    arrays: dict[str, Any] = {name: content.get(f"{split}/{name}") for name in _ARRAYS}
    return Predictions(
        answers=tuple(texts["answers"]),
        statistics={n.removeprefix(prefix): v for n, v in content.items() if n.startswith(prefix)},
        tags=None if tags is None else tuple(tuple(one) for one in tags),
        **arrays,
    )
