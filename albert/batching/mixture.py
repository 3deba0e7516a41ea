"""Training data of several corpora: which batch comes next, its mask rule, and the process that computes it.

A step is `accumulate` batches; process r of W computes those whose number within the step is r modulo W. The
order is a pure function of the seed and the shares, whatever W is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from albert.batching.stream import START, Cursor, InstanceStream, Planned
from albert.model import Batch
from data.instances import MaskRule

_RATE_DIGITS = 2  # of scheduled rates


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the run: the step it ends before, and each corpus's share of its tokens."""

    until: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DataState:
    """The place of training in the data, one cursor for each corpus: O(1) to store and to return to."""

    batches: int = 0  # drawn in the run
    cursors: tuple[Cursor, ...] = ()
    tokens: tuple[int, ...] = ()  # drawn in this phase
    skipped: int = 0  # those of the batches whose steps were rolled back

    @classmethod
    def start(cls, corpora: int) -> DataState:
        return cls(0, (START,) * corpora, (0,) * corpora)

    def rolled_back_to(self, batches: int) -> DataState:
        """The same place in the data, for a run of which only the first `batches` batches count."""
        return replace(self, skipped=self.batches - batches, tokens=(0,) * len(self.tokens))


class StepData(NamedTuple):
    """The part of a step that one process computes, and the place in the data after the whole step."""

    batches: list[Batch]
    corpora: list[int]  # of each batch
    after: DataState
    tokens: int  # of the whole step
    is_ordered: bool  # whether any sequence of the whole step has an order label


class TrainingData:
    """Steps of batches from several corpora, mixed by tokens.

    The next batch comes from the corpus furthest behind its share of the phase's tokens, so that no share is
    ever off by more than a batch.
    """

    def __init__(
        self,
        streams: Sequence[InstanceStream],
        phases: Sequence[Phase],
        *,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        mask_rates: tuple[float, ...] | None = None,
    ):
        """`mask_rates` are those of the first and last step, linear in between; None: each corpus's own."""
        self.streams, self.phases, self.accumulate = list(streams), list(phases), accumulate
        self.rank, self.world_size, self.mask_rates = rank, world_size, mask_rates

    def steps(self, state: DataState) -> Iterator[StepData]:
        """Yield this process's steps from a place on, without end."""
        plans = [stream.plan(cursor) for stream, cursor in zip(self.streams, state.cursors, strict=True)]
        while True:
            step = self._next_step(plans, state)
            state = step.after
            yield step

    def _next_step(self, plans: Sequence[Iterator[Planned]], state: DataState) -> StepData:
        step = (state.batches - state.skipped) // self.accumulate
        phase = next((p for p in self.phases if step < p.until), self.phases[-1])
        if any(step == p.until for p in self.phases):
            state = replace(state, tokens=(0,) * len(plans))
        cursors, tokens = list(state.cursors), list(state.tokens)
        batches: list[Batch] = []
        corpora: list[int] = []
        is_ordered = False
        for number in range(self.accumulate):
            corpus = _furthest_behind(phase.shares, tokens)
            planned = next(plans[corpus])
            cursors[corpus] = planned.after
            tokens[corpus] += planned.tokens
            is_ordered |= planned.is_ordered
            if number % self.world_size == self.rank:
                batches.append(self.streams[corpus].pack(planned, self.rule_at(corpus, step)))
                corpora.append(corpus)
        drawn = sum(tokens) - sum(state.tokens)
        total = state.batches + self.accumulate
        after = replace(state, batches=total, cursors=tuple(cursors), tokens=tuple(tokens))
        return StepData(batches, corpora, after, drawn, is_ordered)

    def passes(self, steps: int) -> list[float]:
        """Estimate how often the first `steps` steps read each corpus but its held-out documents."""
        read, before = [0.0] * len(self.streams), 0
        for phase in self.phases:
            more = max(min(phase.until, steps) - before, 0)
            read = [done + more * share for done, share in zip(read, phase.shares, strict=True)]
            before = phase.until
        return [
            self.accumulate * done * one.batch_tokens / max(one.tokens * (1 - one.never_trained_share), 1)
            for one, done in zip(self.streams, read, strict=True)
        ]

    def rule_at(self, corpus: int, step: int) -> MaskRule:
        """The rule that masks a corpus at a step, counted from 0."""
        rule = self.streams[corpus].info.rule
        if self.mask_rates is None:
            return rule
        first, last = self.mask_rates
        progress = min(step / max(self.phases[-1].until - 1, 1), 1.0)
        return replace(rule, rate=round(first + (last - first) * progress, _RATE_DIGITS))


def _furthest_behind(shares: Sequence[float], tokens: Sequence[int]) -> int:
    """The corpus to draw from next; among equals, the one with the larger share."""
    total = sum(tokens)
    drawn_from = [i for i, share in enumerate(shares) if share > 0]
    return max(drawn_from, key=lambda i: (shares[i] * total - tokens[i], shares[i]))
