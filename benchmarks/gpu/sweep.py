"""A sweep of tile sizes on a GPU, and the table of the best ones, for `kernels.tuning`.

One part of an entry (a kernel's block, warps, stages and rows) is varied at a time, the others stay; torch's
FlashAttention-2 is a candidate too. All candidates are first compiled and checked on all cores, each in both
passes; then those that are right are timed, one after another. A candidate replaces the built-in entry where
it is faster by more than a fiftieth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import kernels
from benchmarks.gpu.scale import Scale, lengths_of, offsets
from benchmarks.gpu.timing import passes, tiles_used, time_rounds
from benchmarks.gpu.workers import Failure, Worker, run_tasks
from kernels import tuning
from kernels.tuning import AttentionTiles, Launch, LossTiles, Table

LEAST_GAIN = 1.02
# an H200 found others slower: one stage, or eight warps on a block of 32 or less
LAUNCHES = [Launch(*launch) for launch in product((16, 32, 64), (4,), (2, 3, 4))]
LAUNCHES += [Launch(64, 8, 2), Launch(64, 8, 3), Launch(128, 4, 2), Launch(128, 8, 3)]
# padded head dim and longest sequence, in the order of their importance to ALBERT; then dropout, for BERT
SHAPES = ((64, 512), (64, 128), (32, 128), (32, 512), (128, 512), (128, 128))
Entry = TypeVar("Entry", AttentionTiles, LossTiles)


@dataclass(frozen=True)
class Trial:
    """A table of one entry, with one part that differs from the built-in entry."""

    shape: tuple[int, int, bool]  # padded head dim, longest sequence, dropout; of the loss: width, 0, False
    part: str  # "" for the built-in entry
    table: Table

    @property
    def launch(self) -> Launch | None:
        entry = self.table.loss or next(iter(self.table.attention.values()))
        return getattr(entry, self.part) if self.part not in ("", "flash") else None


def trials(scale: Scale) -> list[list[Trial]]:
    """List the candidates of each shape, after its built-in entry."""
    name = tuning.architecture(torch.device(scale.device))
    built_in = tuning.table(name)
    shapes = [(*s, False) for s in SHAPES] + [(64, 128, True), (64, 512, True)]
    groups = [list(_attention_trials(built_in, *shape)) for shape in shapes]
    groups.insert(1, list(_loss_trials(built_in)))
    return [group[:2] for group in groups[:2]] if scale.is_small else groups


def _attention_trials(built_in: Table, width: int, longest: int, dropout: bool) -> Iterator[Trial]:
    key = (width, tuning.bucket_of(longest), dropout)
    entry = built_in.attention[key]
    whole = ("whole",) if longest <= entry.tile else ()
    separate = () if whole and entry.whole else ("queries", "keys")
    halves = [replace(launch, rows=64) for launch in LAUNCHES if entry.tile > 64 and launch.num_warps == 4]
    tried = [*product(("forward", *separate, *whole), LAUNCHES), *product(("forward", *separate), halves)]
    for part, changed in _variants(entry, tried):
        yield Trial((width, longest, dropout), part, Table({key: changed}))
    if not dropout:
        yield Trial((width, longest, dropout), "flash", Table({key: replace(entry, flash=True)}))


def _loss_trials(built_in: Table) -> Iterator[Trial]:
    launches = [replace(launch, rows=rows) for launch, rows in product(LAUNCHES, (64, 128))]
    assert built_in.loss is not None
    for part, changed in _variants(built_in.loss, product(("forward", "states", "table"), launches)):
        yield Trial((128, 0, False), part, Table(loss=changed))


def _variants(entry: Entry, tried: Iterable[tuple[str, Launch]]) -> Iterator[tuple[str, Entry]]:
    """Yield an entry of a table, and what it becomes with another launch of one part."""
    yield "", entry
    for part, launch in tried:
        if launch != getattr(entry, part):
            yield part, replace(entry, **{part: launch})


def _passes(scale: Scale, shape: tuple[int, int, bool]) -> Callable[[], list[Tensor]]:
    """Both passes of a trial's operator: a function of nothing, which returns output and gradients."""
    width, longest, dropout = shape
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": scale.device, "dtype": scale.dtype, "requires_grad": True}
    if longest:
        lengths = lengths_of("mixed", min(longest, scale.tokens // 2), scale.tokens)
        cu_seqlens, most = offsets(lengths, scale.device), max(lengths)
        inputs = [torch.randn(scale.tokens, 3, 1 if scale.is_small else 12, width, **like)]
        dropout_p = 0.1 if dropout else 0.0

        schedule = kernels.attention_schedule(inputs[0], cu_seqlens, most, width)
        seed = torch.ones(1, dtype=torch.int64, device=scale.device)  # the same for all tiles
        settings: dict[str, Any] = {"dropout_p": dropout_p, "seed": seed, "schedule": schedule}

        def forward() -> Tensor:
            return kernels.attention(*inputs, cu_seqlens, most, **settings)
    else:
        n, V = scale.masked, scale.vocabulary
        inputs = [torch.randn(n, width, **like), torch.randn(V, width, **like), torch.randn(V, **like)]
        labels = torch.randint(V, (n,), device=scale.device)

        def forward() -> Tensor:
            return kernels.mlm_loss(*inputs, labels)[0]

    return passes(forward, inputs)


def check_trial(scale: Scale, trial: Trial, built_in: Table) -> None:
    """Compile a candidate, and compare its results with the built-in entry's, row by row."""
    with tiles_used(built_in):
        expected = _passes(scale, trial.shape)()
    with tiles_used(trial.table):
        got = _passes(scale, trial.shape)()
    allowed = 8 * torch.finfo(scale.dtype).eps
    for pair in zip(got, expected, strict=True):
        a, b = (x.detach().float().reshape(len(x), -1) for x in pair)
        size = b.norm(dim=1)  # of all rows together a few wrong ones would be a small part
        difference = ((a - b).norm(dim=1) / size.clamp_min(size.square().mean().sqrt())).max()
        if not difference <= allowed:
            raise AssertionError(f"results differ by {difference:.1e}")


def time_trial(scale: Scale, trial: Trial) -> float:
    """Time a candidate: the milliseconds of both passes."""
    with tiles_used(trial.table):
        return next(time_rounds(_passes(scale, trial.shape), seconds=0.05)).milliseconds


def sweep(
    scale: Scale,
    deadline: float,
    processes: int,
    worker: Worker,
    note: Callable[[str, dict[str, object]], None],
) -> Table:
    """Try the candidates until the deadline, and time them in one process.

    `note` gets every figure. Returns the better entries.
    """
    found = Table()
    for group in trials(scale):
        if time.monotonic() > deadline:
            break
        tasks = [(check_trial, (scale, trial, group[0].table)) for trial in group]
        outcomes = dict(run_tasks(tasks, deadline, processes=processes, choice=scale.kernels))
        right = [trial for n, trial in enumerate(group) if not isinstance(outcomes[n], Failure)]
        for number, outcome in sorted(outcomes.items()):
            if isinstance(outcome, Failure):
                note("trial", _record(group[number], refused=outcome.reason))
        times = {}
        for number, trial in enumerate(right):
            outcome = worker.call((time_trial, (scale, trial)), deadline)
            failed = isinstance(outcome, Failure)
            note("trial", _record(trial, **{"refused" if failed else "milliseconds": outcome}))
            if not failed:
                times[number] = outcome
        found = found.merged(_best(right, times))
    return found


def _record(trial: Trial, **more: object) -> dict[str, object]:
    more = {name: x.reason if isinstance(x, Failure) else x for name, x in more.items()}
    return {"shape": trial.shape, "part": trial.part, "launch": str(trial.launch), **more}


def _best(right: list[Trial], times: dict[int, float]) -> Table:
    """The built-in entry with the fastest launch of each part, where it gains enough; else no entry."""
    if 0 not in times or right[0].part:  # the built-in entry itself failed or came too late
        return Table()
    usual, better, gains = right[0].table, dict[str, Any](), dict[str, float]()
    for part in {trial.part for trial in right} - {"", "flash"}:
        own = [number for number in times if right[number].part == part]
        best = min(own, key=times.__getitem__, default=0)
        if times[0] >= LEAST_GAIN * times[best]:
            better[part], gains[part] = right[best].launch, times[0] - times[best]
    if "whole" in better and all(entry.whole is None for entry in usual.attention.values()):
        # in place of the other two, not beside them
        less = gains["whole"] < gains.get("queries", 0.0) + gains.get("keys", 0.0)
        for part in ("whole",) if less else ("queries", "keys"):
            gains.pop(part, None)
            better.pop(part, None)
    flash = [times[number] for number in times if right[number].part == "flash"]
    if flash and times[0] - sum(gains.values()) >= LEAST_GAIN * flash[0]:
        better["flash"] = True
    if not better:
        return Table()
    return Table(
        {key: replace(entry, **better) for key, entry in usual.attention.items()},
        usual.loss and replace(usual.loss, **better),
    )


def write(found: Table, scale: Scale, folder: Path, **about: object) -> Path:
    """Write the table of the better entries, under the name that `kernels.tuning` looks for.

    It takes the place of the one that the sweep began with, so that one's other entries are in it.
    """
    name = tuning.architecture(torch.device(scale.device))
    path = folder / tuning.table_file(name)
    tuning.write_table(path, tuning.measured(name).merged(found), **about)
    return path
