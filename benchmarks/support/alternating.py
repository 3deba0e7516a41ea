"""Run rivals in turn, so that other load on the machine affects them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], float]  # does some work and returns how much of it, in tokens or examples


@dataclass(frozen=True, slots=True)
class Rates:
    """Work a second in each round, and for each second of processor time, of all threads: on a machine that
    is busy with other things too, the steadier measure.
    """

    of_round: tuple[float, ...]
    of_processor: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.of_round)

    def times(self, rival: Rates) -> tuple[float, float, float]:
        """Return our rate relative to the rival's: median, lowest and highest over the rounds."""
        ratios = [ours / theirs for ours, theirs in zip(self.of_round, rival.of_round, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def times_by_processor(self, rival: Rates) -> float:
        """Return the median ratio per second of processor time."""
        pairs = zip(self.of_processor, rival.of_processor, strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def to_record(self) -> dict[str, object]:
        rounds = {"of_round": list(self.of_round), "of_processor": list(self.of_processor)}
        return {"median": self.median, **rounds}


def alternate(works: Mapping[str, Work], rounds: int) -> dict[str, Rates]:
    """Measure rates of works, each done once per round, after a warm-up."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            began, processor = time.perf_counter(), time.process_time()
            done = work()
            seconds, processor = time.perf_counter() - began, time.process_time() - processor
            rates[name].append((done / seconds, done / processor))
    return {name: Rates(*zip(*values, strict=True)) for name, values in rates.items()}


def keep_best(works: Mapping[str, Work], own: str, count: int = 2) -> dict[str, Work]:
    """Select `own` and the `count` fastest others by one round: slower settings of a rival need no more."""
    others = {name: work for name, work in works.items() if name != own}
    tried = alternate(others, 1)
    best = sorted(others, key=lambda name: -tried[name].median)[:count]
    return {own: works[own], **{name: works[name] for name in best}}
