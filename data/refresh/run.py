"""A refresh: raw text -> cleaned documents -> instance shards -> a new corpus version, or none if nothing
changed.

`refresh` is the only place with the sequence of the stages. A `Runner` decides where they run: by default in
this process and a pool of others, in a flow as tasks of an orchestrator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Generic, Protocol, TypeVar

from tqdm import tqdm

from data.catalog import sole_writer
from data.instances import OBJECTIVES
from data.refresh.build import Piece
from data.refresh.gates import check_quality
from data.refresh.plan import SMALL, Plan, SourceFile, packs, plan_refresh, renew
from data.refresh.result import RefreshResult
from data.refresh.settings import RefreshSettings
from data.refresh.stages import build_batch, commit, discover, divide, find_similar, read_batch
from data.storage import base_name, is_remote
from data.workers import worker_pool

BATCH_WEIGHT = 64 << 20  # bytes that one task reads at most: ten seconds
BATCH_SHARDS = 8  # that one task builds at most: ten seconds
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """Neighbouring items that one task works on."""

    label: str  # names the task in the UI
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Work(Generic[Item, T]):
    """Batches of a stage that other processes can work on."""

    name: str  # of the stage
    label: str
    progress: str  # what has been done to an item then, such as "sources read"
    function: Callable[[Sequence[Item]], Sequence[T]]  # one result per item
    batches: Sequence[Batch[Item]]

    @property
    def items(self) -> int:
        return sum(len(batch.items) for batch in self.batches)


class Runner(Protocol):
    """Where the work of a refresh runs."""

    @property
    def workers(self) -> int:
        """How many batches run at the same time."""

    def stage(self, name: str, label: str, work: Callable[[], T]) -> T:
        """Run one stage in this process."""

    def map(self, work: Work[Item, T]) -> list[T]:
        """Work on the batches in other processes; return the results of all items in order."""


@dataclass(frozen=True)
class ProcessRunner:
    """Runs the work in a pool of processes."""

    pool: ProcessPoolExecutor
    workers: int

    def stage(self, name: str, label: str, work: Callable[[], T]) -> T:
        return work()

    def map(self, work: Work[Item, T]) -> list[T]:
        futures = [self.pool.submit(work.function, batch.items) for batch in work.batches]
        return collect(work, (future.result() for future in futures))


def collect(
    work: Work[Item, T], parts: Iterable[Sequence[T]], on_progress: Callable[[float], None] | None = None
) -> list[T]:
    """Join the results of batches as they come in, with a progress bar on a terminal.

    `on_progress` is called with the finished share, from 0 to 1.
    """
    results: list[T] = []
    with tqdm(desc=f"{work.label}: {work.progress}", total=work.items, disable=None, leave=False) as bar:
        for part in parts:
            results += part
            bar.update(len(part))
            if on_progress:
                on_progress(len(results) / work.items)
    return results


def refresh(
    settings: RefreshSettings,
    runner: Runner | None = None,
    plan: Plan | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> RefreshResult:
    """Make a new version of a corpus, or keep the current one if nothing changed.

    Args:
        settings: What to refresh, from what, and how.
        runner: Where the work runs; None: `settings.workers` processes of this machine.
        plan: The plan of these settings if there is one. It is made again only if another refresh committed
            in between.
        on_wait: Called with a message while another process refreshes the corpus; None: raise InputError.
    """
    plan = plan or plan_refresh(settings)  # refuses what cannot work before anything is written
    if runner is not None:
        return _run(plan, runner, on_wait)
    with worker_pool(settings.workers) as pool:
        return _run(plan, ProcessRunner(pool, settings.workers), on_wait)


def _run(plan: Plan, runner: Runner, on_wait: Callable[[str], None] | None) -> RefreshResult:
    settings, corpus = plan.settings, plan.settings.corpus
    with sole_writer(plan.workspace, corpus, on_wait):
        plan = renew(plan)
        # what a batch needs does not grow with the corpus
        small = replace(plan, files=(), current_sources=(), current_shards=())
        files = reading_batches(plan.files, runner.workers)
        read = partial(read_batch, plan=small)
        sources = runner.map(Work("read-source", corpus, "sources read", read, files))
        division = runner.stage("divide", corpus, lambda: divide(plan, sources))
        similar = None
        if OBJECTIVES[settings.objective].similar_words:
            similar = runner.stage("similar-words", corpus, lambda: find_similar(plan, division))
        pieces = building_batches(corpus, division.pieces, runner.workers)
        build = partial(build_batch, plan=small, similar=similar)
        shards = runner.map(Work("build-shard", corpus, "shards built", build, pieces))
        gates = runner.stage("quality-gates", corpus, lambda: check_quality(plan, division, shards))
        result = runner.stage("commit", corpus, lambda: commit(plan, sources, division, shards, similar))
    words = []
    if settings.discover_words:
        words = runner.stage("discover-words", corpus, lambda: discover(plan, result))
    return replace(result, gates=gates, new_words=tuple(words))


def reading_batches(files: Sequence[SourceFile], workers: int) -> list[Batch[SourceFile]]:
    """Group files in order, small neighbours together: a folder may hold a hundred thousand."""
    together = packs(files)
    weights = [sum(map(_reading_weight, pack)) for pack in together]
    groups = [tuple(chain.from_iterable(group)) for group in _group(together, weights, workers, BATCH_WEIGHT)]
    more = [f" and {len(group) - 1:,} more" if len(group) > 1 else "" for group in groups]
    return [Batch(base_name(group[0].uri) + rest, group) for group, rest in zip(groups, more, strict=True)]


def building_batches(corpus: str, pieces: Sequence[Piece], workers: int) -> list[Batch[Piece]]:
    """Group the pieces of a corpus in order."""
    groups = _group(pieces, [1] * len(pieces), workers, BATCH_SHARDS)
    ranges = [dict.fromkeys((group[0].number + 1, group[-1].number + 1)) for group in groups]
    labels = [f"{corpus} {'-'.join(map(str, both))}/{len(pieces)}" for both in ranges]
    return [Batch(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


def _group(items: Sequence[Item], weights: Sequence[int], workers: int, most: int) -> list[list[Item]]:
    """Group neighbours, larger groups first: each weighs about half of a worker's share of the rest.

    Every task costs the orchestrator time, and small tasks at the end keep all workers busy until everything
    is done (guided self-scheduling: Polychronopoulos and Kuck, 1987).
    """
    groups: list[list[Item]] = []
    left, weight, enough = sum(weights), 0.0, 0.0
    for item, item_weight in zip(items, weights, strict=True):
        if weight >= enough:
            groups.append([])
            weight, enough = 0.0, min(most, left / (2 * workers))
        groups[-1].append(item)
        weight += item_weight
        left -= item_weight
    return groups


def _reading_weight(file: SourceFile) -> int:
    if is_remote(file.uri):
        return BATCH_WEIGHT  # asking for its size may take as long as reading it
    return SMALL + (0 if file.previous and file.previous.size == file.size else file.size)
