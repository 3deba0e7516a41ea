"""Read tensors by name from safetensors, torch's .bin and TensorFlow files.

A damaged file raises one error that names it; code in a pickle never runs.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from albert.checkpoints.source import Source
from albert.checkpoints.tensor_bundle import read_bundle
from data.errors import InputError


def read_tensors(source: Source) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint under the file's names.

    Raises InputError if a file is missing or damaged, or holds NaN or infinity.
    """
    tensors: dict[str, Tensor] = {}
    if source.is_tensorflow:
        tensors = read_bundle(source.weights)
    else:
        for path in source.parts:
            tensors |= _read_pickle(path) if path.suffix == ".bin" else _read_safetensors(path)
    for name, tensor in tensors.items():
        # numbers of 8 bits are quantised, by scales in other tensors
        if tensor.itemsize == 1 or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            raise InputError(f"{source.weights} holds tensors of a kind that is not read: {name} is {kind}")
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise InputError(
            f"{source.weights} holds NaN or infinity in {len(broken)} tensor(s), first {broken[0]}: "
            "it is damaged"
        )
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file (truncated or damaged): {error}") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} holds more than tensors, which is not executed: save the checkpoint "
            "as safetensors, or get it from somewhere else"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, ImportError) as error:
        reason = (str(error).strip() or "it ends too early").splitlines()[0]
        raise InputError(f"{path} is not a whole file of torch: {reason}") from None
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise InputError(f"{path} does not hold tensors by name: save the model's state_dict()")
    return {str(name): tensor for name, tensor in content.items()}
