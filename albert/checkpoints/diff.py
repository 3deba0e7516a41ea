"""The difference between two checkpoints, whatever their formats."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict

from torch import Tensor

from albert.checkpoints.loading import LoadedCheckpoint
from data.errors import InputError
from data.tokenization import encode_alike


def compare(first: LoadedCheckpoint, second: LoadedCheckpoint) -> tuple[list[str], str]:
    """A line for each difference, of parameters the largest first, and a summary."""
    a, b = (_tensors(one) for one in (first, second))
    before, after = asdict(first.config), asdict(second.config)
    shapes = {name: (tuple(a[name].shape), tuple(b[name].shape)) for name in a if name in b}
    gaps = {name: _gap(a[name].double(), b[name].double()) for name, (x, y) in shapes.items() if x == y}
    differing = sorted((name for name in gaps if gaps[name][0]), key=lambda name: -gaps[name][1])
    lines = [f"config {name}: {v} -> {after[name]}" for name, v in before.items() if v != after[name]]
    with suppress(InputError):  # a checkpoint may be without a tokenizer
        if not encode_alike(first.source.vocabulary, second.source.vocabulary):
            lines.append("the tokenizers have other entries, or read case, accents or terms differently")
    lines += [f"only in the first: {name}" for name in a if name not in b]
    lines += [f"only in the second: {name}" for name in b if name not in a]
    lines += [f"shape of {name}: {x} -> {y}" for name, (x, y) in shapes.items() if x != y]
    lines += [
        f"{name}: largest difference {gaps[name][0]:.3g}, "
        + (f"{100 * gaps[name][1]:.3g}% by norm" if gaps[name][1] < math.inf else "the first is 0")
        for name in differing
    ]
    same = len(gaps) - len(differing)
    return lines, f"{same} parameter(s) the same to the bit, {len(differing)} with other values"


def _tensors(one: LoadedCheckpoint) -> dict[str, Tensor]:
    """The model's parameters, then what is beside them in the file, such as a classifier, under its names."""
    beside = {name: one.tensors[name] for name in one.report.unused}
    return {name: one.value(name) for name in one.parts} | beside


def _gap(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest difference, and that by L2 norm over the norm of the first."""
    gap, size = a - b, a.norm().item()
    return gap.abs().max().item(), gap.norm().item() / size if size else math.inf
