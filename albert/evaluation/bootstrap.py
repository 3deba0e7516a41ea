"""Statistics over seeds: mean and spread, and the certainty of a difference between two models.

S = seeds, n = examples, k = statistics of an example (see `albert.evaluation.metrics`), B = resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_rel

from albert.evaluation.metrics import score
from albert.evaluation.records import Calibration, CalibrationBin, Summary

RESAMPLES = 2000
SIGNIFICANCE = 0.05
_ROUNDING = 1e-12  # differences of equal counts differ by less
_BATCH = 250  # resamples at a time, whose counts fit into memory for any test set


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation.

    >>> summarize([0.5, 0.7]).mean
    0.6
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(np.mean(values)), deviation, tuple(map(float, values)))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much higher a second model scores than a first that was trained with the same seeds."""

    summary: Summary  # of the seeds' differences
    low: float | None  # ends of the 95% interval; None with a single seed
    high: float | None
    p_value: float | None
    probability: float | None  # that the second model beats the first

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero and, for several seeds, p is below 0.05.

        The interval alone is too narrow for few seeds (Davison and Hinkley 1997, section 2.3); Student's t
        accounts for their number.
        """
        if self.low is None or self.high is None:
            return False
        significant = self.p_value is None or self.p_value < SIGNIFICANCE
        return significant and (self.low > 0 or self.high < 0)


def paired_difference(
    metric: str, first: np.ndarray, second: np.ndarray, *, seedless: bool = False
) -> PairedDifference:
    """Second minus first, from their statistics [S, n, k] on the same examples under the same seeds.

    The interval and the probability come from a bootstrap that draws seeds, and for each draw examples, with
    replacement and the same for both models: it covers other seeds and other test sets. The test is Student's
    paired t over the seeds. A single seed says nothing about other seeds and gets neither. With `seedless`
    nothing was trained, so only examples are drawn.
    """
    differences = score(metric, second.sum(1)) - score(metric, first.sum(1))
    summary = summarize(differences.tolist())
    if len(differences) < 2 and not seedless:
        return PairedDifference(summary, None, None, None, None)
    drawn = _bootstrap(metric, first, second)
    low, high = np.quantile(drawn, [0.025, 0.975])
    probability = float((drawn > 0).mean() + (drawn == 0).mean() / 2)
    p_value = None if seedless else paired_p_value(differences)
    return PairedDifference(summary, float(low), float(high), p_value, probability)


def paired_p_value(differences: np.ndarray) -> float:
    """The two-sided p of Student's paired t test; for equal differences, 1 if they are 0, else 0."""
    if np.ptp(differences) < _ROUNDING:
        return float(abs(differences[0]) < _ROUNDING)
    return float(ttest_rel(differences, np.zeros(len(differences))).pvalue)


def _bootstrap(metric: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The differences of RESAMPLES resamples."""
    S, n, k = first.shape
    rng = np.random.default_rng(0)
    both = np.concatenate([first, second], axis=2)  # [S, n, 2k]
    drawn = []
    for begin in range(0, RESAMPLES, _BATCH):
        B = min(_BATCH, RESAMPLES - begin)
        seeds = rng.integers(S, size=(B, S))
        times = np.zeros((S, B))  # how often each seed was drawn
        np.add.at(times, (seeds, np.arange(B)[:, None]), 1)
        examples = np.stack([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(B)])
        # the same examples for every seed, as all were tested on the same ones
        scores = np.empty((2, S, B))
        for seed in range(S):
            sums = examples.astype(np.float64) @ both[seed]  # [B, 2k]
            scores[0, seed], scores[1, seed] = score(metric, sums[:, :k]), score(metric, sums[:, k:])
        drawn.append(((scores[1] - scores[0]) * times).sum(0) / S)
    return np.concatenate(drawn)


def calibration(probabilities: np.ndarray, gold: np.ndarray, bins: int = 10) -> Calibration:
    """Expected calibration error of class probabilities [S, n, C] with gold labels [n] (Guo et al. 2017, eq.
    3), as the mean over the seeds: an overconfident seed must not cancel an underconfident one. The bins hold
    the predictions of all seeds.

    >>> round(calibration(np.array([[[0.8, 0.2], [0.2, 0.8]]]), np.array([0, 0])).ece, 3)
    0.3
    """
    confidence = probabilities.max(-1)  # [S, n]
    right = probabilities.argmax(-1) == gold  # [S, n]
    bin_of = np.minimum(np.ceil(confidence * bins).astype(int) - 1, bins - 1)
    filled, error = [], 0.0
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            mean, accuracy = float(confidence[inside].mean()), float(right[inside].mean())
            filled.append(
                CalibrationBin(number / bins, (number + 1) / bins, int(inside.sum()), mean, accuracy)
            )
            of_seeds = np.where(inside, confidence - right, 0).sum(1)  # [S]
            error += float(np.abs(of_seeds).mean()) / len(gold)
    return Calibration(error, tuple(filled))
