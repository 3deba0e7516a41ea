"""Tile sizes of the kernels: a committed table keyed by architecture, width and length, no run-time
autotuning.

No entry was timed. They are what `benchmarks.compile_only` accepts for the architecture (no spills, tensor
cores and asynchronous copies in use, shared memory under the limit), chosen among those by arithmetic. The
sm_80 entries also fit the 99 KiB of shared memory of sm_86 and sm_89. "interpreter" is Triton's, on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Architecture = str  # "sm_80", "sm_90" or "interpreter"


@dataclass(frozen=True, slots=True)
class Launch:
    """How one kernel is launched: the width of its inner loop's block, warps, depth of the pipeline."""

    block: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """`tile` rows belong to one program: queries in `forward` and `queries` (dq), keys in `keys` (dk, dv).

    `whole` computes all three gradients in one pass, for batches whose longest sequence fits in a tile.
    """

    tile: int
    forward: Launch
    queries: Launch
    keys: Launch
    whole: Launch


@dataclass(frozen=True, slots=True)
class LossLaunch(Launch):
    """`rows` belong to one program, of states or of the vocabulary; `block` of the other pass by."""

    rows: int


@dataclass(frozen=True, slots=True)
class LossTiles:
    """The loss, the gradient of the states, the gradient of the table."""

    forward: LossLaunch
    states: LossLaunch
    table: LossLaunch


def architecture(device: torch.device) -> Architecture:
    """The table's name for a device; newer GPUs than those listed take the newest entry."""
    if device.type != "cuda":
        return "interpreter"
    return "sm_90" if torch.cuda.get_device_capability(device)[0] >= 9 else "sm_80"


LENGTHS = (64, 128)  # buckets of the longest sequence; longer ones share the last entry

_I = Launch(64, 4, 2)
_ATTENTION: dict[Architecture, dict[int, tuple[AttentionTiles, ...]]] = {
    # by padded head dim: longest sequence up to 64, up to 128, longer
    "sm_80": {
        32: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
        ),
        64: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
        ),
        128: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 8, 1), Launch(32, 8, 2), Launch(32, 8, 2)),
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 8, 1), Launch(32, 8, 2), Launch(32, 8, 2)),
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 8, 1), Launch(32, 8, 2), Launch(32, 8, 2)),
        ),
        256: (
            AttentionTiles(64, Launch(32, 8, 2), Launch(32, 8, 1), Launch(16, 8, 1), Launch(16, 8, 1)),
            AttentionTiles(64, Launch(32, 8, 2), Launch(32, 8, 1), Launch(16, 8, 1), Launch(16, 8, 1)),
            AttentionTiles(64, Launch(32, 8, 2), Launch(32, 8, 1), Launch(16, 8, 1), Launch(16, 8, 1)),
        ),
    },
    "sm_90": {
        32: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
        ),
        64: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 4, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
            AttentionTiles(128, Launch(64, 4, 3), Launch(64, 8, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
        ),
        128: (
            AttentionTiles(64, Launch(64, 4, 2), Launch(64, 4, 2), Launch(64, 8, 2), Launch(64, 8, 2)),
            AttentionTiles(128, Launch(64, 8, 3), Launch(64, 8, 2), Launch(32, 8, 2), Launch(32, 8, 2)),
            AttentionTiles(128, Launch(64, 8, 3), Launch(64, 8, 2), Launch(32, 8, 2), Launch(32, 8, 2)),
        ),
        256: (
            AttentionTiles(64, Launch(64, 8, 2), Launch(32, 8, 2), Launch(32, 8, 1), Launch(32, 8, 1)),
            AttentionTiles(64, Launch(64, 8, 2), Launch(32, 8, 2), Launch(32, 8, 1), Launch(32, 8, 1)),
            AttentionTiles(64, Launch(64, 8, 2), Launch(32, 8, 2), Launch(32, 8, 1), Launch(32, 8, 1)),
        ),
    },
    "interpreter": {width: (AttentionTiles(64, _I, _I, _I, _I),) * 3 for width in (16, 32, 64, 128, 256)},
}


def attention_tiles(device: torch.device, width: int, max_seqlen: int) -> AttentionTiles:
    """Tiles for heads `width` wide (a power of two, 16 to 256)."""
    entries = _ATTENTION[architecture(device)]
    bucket = sum(max_seqlen > length for length in LENGTHS)
    return entries.get(width, entries[32])[bucket]


_LOSS: dict[Architecture, dict[int, LossTiles]] = {
    # by padded width of the states: up to 128, 256
    "sm_80": {
        128: LossTiles(LossLaunch(64, 4, 2, 128), LossLaunch(64, 8, 2, 128), LossLaunch(64, 8, 2, 128)),
        256: LossTiles(LossLaunch(32, 8, 2, 128), LossLaunch(32, 8, 2, 64), LossLaunch(32, 8, 2, 64)),
    },
    "sm_90": {
        128: LossTiles(LossLaunch(128, 8, 3, 128), LossLaunch(64, 8, 3, 128), LossLaunch(64, 8, 3, 128)),
        256: LossTiles(LossLaunch(64, 8, 2, 128), LossLaunch(64, 8, 2, 64), LossLaunch(64, 8, 2, 64)),
    },
    "interpreter": {width: LossTiles(*(LossLaunch(512, 4, 1, 64),) * 3) for width in (128, 256)},
}


def loss_tiles(device: torch.device, width: int) -> LossTiles:
    """Tiles of the MLM loss for states up to 256 wide."""
    return _LOSS[architecture(device)][128 if width <= 128 else 256]
