"""Detect that training diverged, from each corpus's loss and the gradient's norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_DECAY = 0.9  # of the running mean, which covers about ten steps
_SETTLED = 10  # steps of a corpus before its running mean means something
# nats above the lowest running mean: a batch's noise stays below a third of it, divergence is several above
RISE = 1.0
MOST_ROLLBACKS = 3


@dataclass(slots=True)
class Trend:
    """The running mean of a corpus's loss."""

    mean: float
    lowest: float
    steps: int = 0


class Sentinel:
    """Detects divergence from the losses and the gradient's norm of each step.

    `trends`, by corpus, are those of the trainer's state and are updated in place. A loss also rises where a
    harder source of a corpus begins: `is_worse` tells whether the model is worse, and is asked only then.
    """

    def __init__(self, trends: dict[int, Trend], is_worse: Callable[[], bool] = lambda: True):
        self.trends, self.is_worse = trends, is_worse

    @property
    def is_calm(self) -> bool:
        """Whether every loss is less than halfway to its limit, as it is with noise alone."""
        return all(trend.mean <= trend.lowest + RISE / 2 for trend in self.trends.values())

    def check(self, losses: Mapping[int, float], norm: float, *, is_harder: bool = False) -> str | None:
        """What is wrong with a step, or None. `losses` is the mean MLM loss of each corpus in the step.

        With `is_harder` more is masked than in the step before, so that losses may rise.
        """
        if is_harder:
            for trend in self.trends.values():
                trend.lowest = trend.mean
        if not math.isfinite(norm):
            return "the gradient is not finite"
        for corpus, loss in losses.items():
            if not math.isfinite(loss):
                return "the loss is not finite"
            trend = self.trends.setdefault(corpus, Trend(loss, loss))
            trend.mean = _DECAY * trend.mean + (1 - _DECAY) * loss
            trend.steps += 1
            trend.lowest = min(trend.lowest, trend.mean)
            if trend.steps > _SETTLED and trend.mean > trend.lowest + RISE:
                if self.is_worse():
                    rise = f"{trend.lowest:.2f} to {trend.mean:.2f}"
                    return f"the MLM loss rose from {rise} (means of about ten steps)"
                trend.lowest = trend.mean
        return None
