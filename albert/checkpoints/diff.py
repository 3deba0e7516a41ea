"""The difference between two checkpoints, whatever their formats."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from albert.checkpoints.loading import LoadedCheckpoint


@dataclass(frozen=True, slots=True)
class TensorDifference:
    name: str  # our parameter's
    largest: float  # of |a - b|
    relative: float  # |a - b| over |a|, by L2 norm


@dataclass(frozen=True, slots=True)
class Difference:
    """How two checkpoints differ."""

    config: tuple[str, ...]  # "field: a -> b"
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    shapes: tuple[str, ...]
    values: tuple[TensorDifference, ...]  # the most different first
    equal: int  # bitwise equal parameters

    @property
    def is_any(self) -> bool:
        return any((self.config, self.only_first, self.only_second, self.shapes, self.values))

    def lines(self) -> list[str]:
        """Describe the difference."""
        lines = [f"config {line}" for line in self.config]
        lines += [f"only in the first: {name}" for name in self.only_first]
        lines += [f"only in the second: {name}" for name in self.only_second]
        lines += [f"shape of {line}" for line in self.shapes]
        lines += [
            f"{d.name}: largest difference {d.largest:.3g}, {100 * d.relative:.3g}% by norm"
            for d in self.values
        ]
        return [
            *lines,
            f"{self.equal} parameter(s) the same to the bit, {len(self.values)} with other values",
        ]


def _parameters(checkpoint: LoadedCheckpoint) -> dict[str, Tensor]:
    return {
        name: torch.cat([checkpoint.tensors[part] for part in parts])
        for name, parts in checkpoint.parts.items()
    }


def compare(first: LoadedCheckpoint, second: LoadedCheckpoint) -> Difference:
    """Compare the configs and parameters of two checkpoints."""
    a, b = _parameters(first), _parameters(second)
    configs = asdict(first.config), asdict(second.config)
    fields = [name for name in configs[0] if configs[0][name] != configs[1][name]]
    both = [name for name in a if name in b]
    shapes = [f"{n}: {tuple(a[n].shape)} -> {tuple(b[n].shape)}" for n in both if a[n].shape != b[n].shape]
    comparable = [name for name in both if a[name].shape == b[name].shape]
    differing = [name for name in comparable if not torch.equal(a[name].double(), b[name].double())]
    values = []
    for name in differing:
        gap, size = (a[name].double() - b[name].double()), a[name].double().norm().item()
        relative = gap.norm().item() / size if size else float("inf")
        values.append(TensorDifference(name, gap.abs().max().item(), relative))
    return Difference(
        config=tuple(f"{name}: {configs[0][name]} -> {configs[1][name]}" for name in fields),
        only_first=tuple(name for name in a if name not in b),
        only_second=tuple(name for name in b if name not in a),
        shapes=tuple(shapes),
        values=tuple(sorted(values, key=lambda d: -d.relative)),
        equal=len(comparable) - len(differing),
    )
