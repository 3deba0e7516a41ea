"""Scores of predictions, and what several seeds say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares in [0, 1]."""

    accuracy: float
    macro_f1: float


def score(predicted: np.ndarray, gold: np.ndarray, num_labels: int) -> Scores:
    """Accuracy and macro-averaged F1 of predicted and gold labels, both [n] in 0..num_labels-1.

    F1 of a class that is neither predicted nor gold is left out of the mean, as it says nothing.

    >>> score(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    Scores(accuracy=0.6666666666666666, macro_f1=0.6666666666666666)
    """
    confusion = np.bincount(gold * num_labels + predicted, minlength=num_labels**2).reshape(
        num_labels, num_labels
    )
    right = confusion.diagonal()
    either = confusion.sum(0) + confusion.sum(1)
    f1 = 2 * right[either > 0] / either[either > 0]
    return Scores(float(right.sum() / confusion.sum()), float(f1.mean()))


@dataclass(frozen=True, slots=True)
class Summary:
    """What several seeds say together."""

    mean: float
    deviation: float  # sample standard deviation; 0 for a single value
    values: tuple[float, ...]


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation.

    >>> summarize([0.5, 0.7]).mean
    0.6
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(np.mean(values)), deviation, tuple(values))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much a second model scores above a first, the two trained with the same seeds."""

    mean: float
    low: float  # ends of the 95% interval
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


# two-sided 97.5% points of Student's t for 1..30 degrees of freedom
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def paired_difference(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Mean of second - first over paired seeds with its 95% confidence interval (Student's t).

    With a single seed nothing is known of the spread: the interval is unbounded.
    """
    differences = np.subtract(second, first)
    mean, n = float(differences.mean()), len(differences)
    if n < 2:
        return PairedDifference(mean, -np.inf, np.inf)
    t = _STUDENT_T[min(n - 1, len(_STUDENT_T)) - 1]
    half = float(t * differences.std(ddof=1) / np.sqrt(n))
    return PairedDifference(mean, mean - half, mean + half)
