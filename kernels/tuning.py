"""Tile sizes of the kernels: tables by architecture, without run-time autotuning.

`benchmarks.gpu check-and-tune` times tiles on a GPU and writes the best to a file named by architecture and
Triton version. Such a file in `kernels/tiles`, or in the folder that JIXU_TILES names, replaces the built-in
entries that it has; the one there is from an H200. What else that H200 found faster, and
`benchmarks.compile_only` accepts, is built in. The other entries were not timed: of those accepted they have
the fewest instructions a score, then the most warps an SM. Accepted are all of sm_90, and the others in a
short list, with Triton 3.9 and, but for one, with 3.6: no spills, tensor cores and asynchronous copies in
use, shared memory within the limit. "interpreter" is Triton's on a CPU.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from kernels.dispatch import has_triton, triton


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch settings of a kernel: block of its inner loop, warps, depth of the pipeline."""

    block: int
    num_warps: int
    num_stages: int
    rows: int = 0  # of a program, whose loop goes over blocks of the others; in attention 0 is a whole tile

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Launches for a schedule of tiles of `tile` queries in `forward` and `queries` (dq), of keys in `keys`.

    `whole` computes all three gradients at once where the longest sequence fits a tile; None where it spills
    or takes more instructions.
    """

    tile: int
    forward: Launch
    queries: Launch
    keys: Launch
    whole: Launch | None
    flash: bool = False  # torch's FlashAttention-2 was faster


@dataclass(frozen=True, slots=True)
class LossTiles:
    """Launches of the loss, of the states' gradient and of the table's."""

    forward: Launch
    states: Launch
    table: Launch


# where buckets of the longest sequence end; longer ones share the last
LENGTHS = (64, 128)


@dataclass(frozen=True)
class Table:
    """Tile sizes of one architecture."""

    # by padded head dim, bucket of the longest sequence, and whether there is dropout; the tile is the same
    # with and without, as a batch's schedule serves both
    attention: dict[tuple[int, int, bool], AttentionTiles] = field(default_factory=dict)
    loss: LossTiles | None = None  # of states up to 128 wide; None if a measured table has none

    def merged(self, other: Table) -> Table:
        """This table with the entries of another."""
        return Table(self.attention | other.attention, other.loss or self.loss)


def bucket_of(max_seqlen: int) -> int:
    return sum(max_seqlen > length for length in LENGTHS)


def _by_bucket(
    entries: dict[tuple[int, int, bool], tuple[Launch, Launch, Launch, Launch | None]],
) -> dict[tuple[int, int, bool], AttentionTiles]:
    """Give every bucket of a padded head dim the entry of its tile: 64 in the first, else the largest."""
    largest = {width: tile for width, tile, _ in sorted(entries)}
    return {
        (width, bucket, dropout): AttentionTiles(tile, *entries[width, tile, dropout])
        for bucket, width, dropout in product(range(len(LENGTHS) + 1), largest, (False, True))
        for tile in [largest[width] if bucket else 64]
    }


MULTIPROCESSORS = 132  # of an H100 or H200; an A100 has 108

L = Launch
# fits the 99 KiB of shared memory of sm_86, sm_89 and sm_120 too
_SM_80 = Table(
    _by_bucket(
        {
            (32, 64, False): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
            (32, 64, True): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(32, 4, 2)),
            (32, 128, False): (L(64, 4, 3), L(64, 8, 2), L(64, 8, 2), L(64, 8, 2)),
            (32, 128, True): (L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), L(32, 8, 2)),
            (64, 64, False): (L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), L(32, 4, 2)),
            (64, 64, True): (L(64, 4, 2), L(32, 4, 2), L(32, 4, 2), None),
            (64, 128, False): (L(64, 8, 2), L(64, 8, 2), L(64, 8, 2), None),
            (64, 128, True): (L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
            (128, 64, False): (L(32, 4, 2), L(64, 8, 2), L(64, 8, 2), None),
            (128, 64, True): (L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        },
    ),
    LossTiles(L(64, 4, 2, 128), L(32, 8, 2, 128), L(32, 8, 2, 128)),
)
# for 227 KiB of shared memory: Hopper, and Blackwell of data centres
_SM_90 = Table(
    _by_bucket(
        {
            (32, 64, False): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
            (32, 64, True): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
            (32, 128, False): (L(32, 4, 3), L(32, 4, 3), L(64, 4, 3), L(64, 8, 2)),
            (32, 128, True): (L(64, 4, 3), L(64, 8, 2), L(64, 4, 2, 64), L(64, 8, 2)),
            (64, 64, False): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), L(64, 4, 2)),
            (64, 64, True): (L(64, 4, 2), L(64, 4, 2), L(64, 4, 2), None),
            (64, 128, False): (L(32, 4, 3, 64), L(32, 4, 3, 64), L(32, 4, 3, 64), L(64, 8, 3)),
            (64, 128, True): (L(64, 8, 3), L(32, 4, 3, 64), L(32, 4, 3, 64), None),
            (128, 64, False): (L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), None),
            (128, 64, True): (L(64, 4, 2), L(64, 4, 2), L(32, 4, 2), None),
            (128, 128, False): (L(32, 4, 2, 64), L(64, 4, 2, 64), L(32, 8, 2), None),
            (128, 128, True): (L(64, 8, 2), L(64, 8, 2), L(32, 8, 2), None),
        },
    ),
    LossTiles(L(64, 4, 2, 128), L(32, 4, 3, 64), L(32, 4, 2, 64)),
)
# tcgen05 keeps a wider tile of the loss in registers, which Triton 3.6 spills
_SM_100 = _SM_90.merged(Table(loss=LossTiles(L(64, 8, 2, 128), L(64, 8, 3, 128), L(64, 8, 2, 128))))
_INTERPRETER = Table(
    dict.fromkeys(
        product((32, 64, 128), (0, 1, 2), (False, True)),
        AttentionTiles(64, L(64, 4, 2), L(64, 4, 2), L(64, 4, 2, 32), L(64, 4, 2)),
    ),
    LossTiles(*(L(512, 4, 1, 64),) * 3),
)
_BUILT_IN = {"interpreter": _INTERPRETER, "sm_90": _SM_90, "sm_100": _SM_100, "sm_103": _SM_100}


def architecture(device: torch.device) -> str:
    """Name the table of a device: "sm_90", or "interpreter"."""
    if device.type != "cuda":
        return "interpreter"
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def table_file(name: str) -> str:
    """The name of an architecture's measured table, for this version of Triton."""
    return f"{name}-triton-{triton.__version__ if has_triton else None}.json"


@cache
def table(name: str) -> Table:
    """The built-in table of an architecture, with the entries that were measured."""
    return _BUILT_IN.get(name, _SM_80).merged(measured(name))


def measured(name: str) -> Table:
    """The entries of an architecture that were measured."""
    path = Path(os.environ.get("JIXU_TILES", Path(__file__).parent / "tiles")) / table_file(name)
    return read_table(path) if path.is_file() else Table()


def read_table(path: Path) -> Table:
    """Read what `write_table` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    attention = {}
    for *key, entry in content["attention"]:
        parts: dict[str, Any] = {n: Launch(**x) if isinstance(x, dict) else x for n, x in entry.items()}
        attention[tuple(key)] = AttentionTiles(**parts)
    loss = content["loss"]
    loss = loss and LossTiles(**{part: Launch(**launch) for part, launch in loss.items()})
    return Table(attention, loss)


def write_table(path: Path, measured: Table, **about: object) -> None:
    """Write a measured table and what it was measured on."""
    content = {
        **about,
        "attention": [(*key, asdict(entry)) for key, entry in measured.attention.items()],
        "loss": measured.loss and asdict(measured.loss),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def attention_tiles(
    device: torch.device, width: int, max_seqlen: int, dropout: bool = False
) -> AttentionTiles:
    """Choose tiles for heads `width` wide (a power of two up to 128). The tile does not depend on dropout."""
    return table(architecture(device)).attention[max(width, 32), bucket_of(max_seqlen), dropout]


def loss_tiles(device: torch.device) -> LossTiles:
    """Choose tiles of the MLM loss for states up to 128 wide."""
    loss = table(architecture(device)).loss
    assert loss is not None  # every built-in table has it
    return loss


def row_tile(width: int) -> dict[str, int]:
    """Choose how many whole rows a program of LayerNorm takes at once, the columns of their tile, and warps.

    A tile has 1024 numbers, or one wider row, and a warp for each 512 (measured on an H200).
    """
    columns = triton.next_power_of_2(width)
    return {"BLOCK_R": max(1, 1024 // columns), "BLOCK_W": columns, "num_warps": max(2, columns // 512)}
