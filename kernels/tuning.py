"""Tile sizes of the kernels: a table by architecture, width and length, without run-time autotuning.

No entry was timed. `benchmarks.compile_only` accepts them all (no spills, tensor cores and asynchronous
copies in use, shared memory within the limit) with Triton 3.6 and 3.9; arithmetic chose among the accepted.
The sm_80 entries also fit the 99 KiB of shared memory of sm_86 and sm_89. "interpreter" is Triton's on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Architecture = str  # "sm_80", "sm_90" or "interpreter"


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch settings of a kernel: block of its inner loop, warps, depth of the pipeline."""

    block: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Launches with `tile` rows per program: queries in `forward` and `queries` (dq), keys in `keys`.

    `whole` computes all three gradients at once where the longest sequence fits a tile; None where it spills.
    """

    tile: int
    forward: Launch
    queries: Launch
    keys: Launch
    whole: Launch | None


@dataclass(frozen=True, slots=True)
class LossLaunch(Launch):
    """A launch with `rows` of states or vocabulary per program, which loops over `block` of the other."""

    rows: int


@dataclass(frozen=True, slots=True)
class LossTiles:
    """Launches of the loss, of the states' gradient and of the table's."""

    forward: LossLaunch
    states: LossLaunch
    table: LossLaunch


def architecture(device: torch.device) -> Architecture:
    """Name a device's entries; GPUs newer than those listed take the newest."""
    if device.type != "cuda":
        return "interpreter"
    return "sm_90" if torch.cuda.get_device_capability(device)[0] >= 9 else "sm_80"


# buckets of the longest sequence; longer ones share the last entry
LENGTHS = (64, 128)
# by padded head dim: tile of each bucket
TILES: dict[Architecture, dict[int, tuple[int, int, int]]] = {
    "sm_80": {32: (64, 128, 128), 64: (64, 128, 128), 128: (64, 64, 64), 256: (64, 64, 64)},
    "sm_90": {32: (64, 128, 128), 64: (64, 128, 128), 128: (64, 128, 128), 256: (32, 32, 32)},
    "interpreter": dict.fromkeys((32, 64, 128, 256), (64, 64, 64)),
}

L = Launch
# by padded head dim, tile, and whether there is dropout: forward, queries, keys, whole
ATTENTION: dict[Architecture, dict[tuple[int, int, bool], AttentionTiles]] = {
    "sm_80": {
        (32, 64, False): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
        (32, 64, True): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(32, 8, 2)),
        (32, 128, False): AttentionTiles(128, L(64, 4, 3), L(64, 8, 2), L(64, 8, 2), L(64, 8, 2)),
        (32, 128, True): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), L(32, 8, 2)),
        (64, 64, False): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), L(32, 4, 2)),
        (64, 64, True): AttentionTiles(64, L(64, 4, 2), L(32, 4, 2), L(32, 4, 2), L(32, 8, 2)),
        (64, 128, False): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), L(32, 8, 2)),
        (64, 128, True): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        (128, 64, False): AttentionTiles(64, L(32, 4, 2), L(64, 8, 2), L(64, 8, 2), L(32, 8, 2)),
        (128, 64, True): AttentionTiles(64, L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), L(32, 8, 2)),
        (256, 64, False): AttentionTiles(64, L(32, 8, 2), L(16, 8, 2), L(16, 8, 2), L(16, 8, 2)),
        (256, 64, True): AttentionTiles(64, L(32, 8, 2), L(16, 8, 2), L(16, 8, 2), None),
    },
    "sm_90": {
        (32, 64, False): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
        (32, 64, True): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
        (32, 128, False): AttentionTiles(128, L(64, 4, 3), L(64, 8, 2), L(64, 8, 2), L(64, 8, 2)),
        (32, 128, True): AttentionTiles(128, L(64, 4, 3), L(64, 8, 2), L(64, 8, 2), L(64, 8, 2)),
        (64, 64, False): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
        (64, 64, True): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), L(64, 8, 2)),
        (64, 128, False): AttentionTiles(128, L(64, 4, 3), L(64, 8, 2), L(64, 8, 2), L(64, 8, 2)),
        (64, 128, True): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        (128, 64, False): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), L(64, 8, 2)),
        (128, 64, True): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(32, 8, 2), None),
        (128, 128, False): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        (128, 128, True): AttentionTiles(128, L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        (256, 32, False): AttentionTiles(32, L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), None),
        (256, 32, True): AttentionTiles(32, L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), None),
    },
    "interpreter": {
        (width, 64, dropout): AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2))
        for width in (32, 64, 128, 256)
        for dropout in (False, True)
    },
}


def attention_tiles(
    device: torch.device, width: int, max_seqlen: int, dropout: bool = False, exact: bool = False
) -> AttentionTiles:
    """Choose tiles for heads `width` wide (a power of two up to 256). The tile does not depend on dropout.

    `exact` is for fp32, whose products do not run on tensor cores: small tiles that fit.
    """
    name, width = architecture(device), max(width, 32)
    if exact and name != "interpreter":
        tile = 32 if width <= 64 else 16
        # dropout's random numbers take registers too
        launch = Launch(16, 8, 1) if dropout else Launch(tile, 4, 1)
        return AttentionTiles(tile, *(launch,) * 3, None)
    tile = TILES[name][width][sum(max_seqlen > length for length in LENGTHS)]
    return ATTENTION[name][width, tile, dropout]


_LOSS: dict[Architecture, dict[int, LossTiles]] = {
    # by padded width of the states: up to 128, 256
    "sm_80": {
        128: LossTiles(LossLaunch(64, 4, 2, 128), LossLaunch(64, 8, 2, 128), LossLaunch(32, 8, 2, 128)),
        256: LossTiles(LossLaunch(32, 8, 2, 128), LossLaunch(32, 8, 2, 64), LossLaunch(32, 8, 2, 64)),
    },
    "sm_90": {
        128: LossTiles(LossLaunch(128, 8, 3, 128), LossLaunch(64, 8, 3, 128), LossLaunch(64, 8, 3, 128)),
        256: LossTiles(LossLaunch(64, 8, 2, 128), LossLaunch(64, 8, 2, 64), LossLaunch(64, 8, 2, 64)),
    },
    "interpreter": {width: LossTiles(*(LossLaunch(512, 4, 1, 64),) * 3) for width in (128, 256)},
}


def loss_tiles(device: torch.device, width: int, exact: bool = False) -> LossTiles:
    """Choose tiles of the MLM loss for states up to 256 wide; `exact` as in `attention_tiles`."""
    name = architecture(device)
    if exact and name != "interpreter":
        return LossTiles(*(LossLaunch(16, 4, 1, 16),) * 3)
    return _LOSS[name][128 if width <= 128 else 256]


def embedding_projects(device: torch.device, exact: bool) -> bool:
    """Whether to fuse the embedding's projection. Not in fp32: its tile spills, and cuBLAS is faster."""
    return not exact or architecture(device) == "interpreter"


def scatter_tile(exact: bool) -> tuple[int, int]:
    """Choose how many sorted rows and columns a program of the embedding's backward scatter sums."""
    return (32, 64) if exact else (64, 128)
