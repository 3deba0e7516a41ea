"""Student's interval of a score, or of a difference of scores, over units and examples at once.

U = units (fine-tuning seeds, or pretraining runs), n = examples, or groups of them, R = fine-tuning runs, k =
statistics of an example (see `albert.evaluation.metrics`).

All units are tested on the same examples: a crossed layout with one value a cell, x[u, i] = mean + unit[u] +
example[i] + rest[u, i]. With Qu = variance of the unit means / U, Qi = variance of the example means / n and
Qr = mean square of the rest / (U n), each of Qu and Qi holds the rest once, so by the method of moments

    SE^2 = Qu + Qi - Qr         (Searle, Casella and McCulloch 1992, chapter 4)
    1 / degrees = w / (U-1) + (1 - w) / nu, with the units' share w = Qu / SE^2

nu is n-1, or less where few examples hold most of their variance: a large group among small ones, or the few
errors of a good model. s^2 then varies more, by sigma^4 (2 / (n-1) + excess kurtosis / n), as chi-square does
with nu degrees (Box 1953).

A component of the variance below 0 counts as 0: where Qi < Qr, Qi - Qr is 0; where Qu < Qr, the units explain
nothing and SE^2 = Qi, with nu degrees. Else units that happen to agree would shorten the interval below that
of the examples alone. Satterthwaite (1946) and Welch (1947) have the squares of the shares. Of three units
these are too uncertain: a Qu that comes out small by chance shortens the interval and raises the degrees at
once, and it covers 93%. Cochran (1964) weighs the two quantiles of t by w for the same reason; so weighted,
degrees are never more than Satterthwaite's. docs/report.md has the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from albert.evaluation.metrics import number_statistics, score
from albert.evaluation.records import Summary

CONFIDENCE = 0.95
FEWEST_UNITS = 3
FEWEST_EXAMPLES = 20  # or groups; of fewer the interval does not cover 95% (docs/report.md)
_LEFT_OUT = 1 - 1e-10  # share of an example that is left out: a class of it alone keeps its score
_ROUNDING = 1e-9  # standard errors of values that are all equal are smaller


class Estimate(NamedTuple):
    """A mean with half the width of its 95% interval, and the test that it is 0."""

    mean: float
    half_width: float | None = None  # None: cannot be told, and neither can the others
    degrees: float | None = None
    p_value: float | None = None  # two-sided
    least_half_width: float | None = None  # about what it would be with any number of units


def estimate(*arms: np.ndarray, fewest: int = FEWEST_EXAMPLES) -> Estimate:
    """The mean of the sum of arms, each [U, n] over the same n examples; a difference has a negated arm.

    Units of different arms are independent: paired ones are subtracted before. An arm of one unit is not
    random. Without any spread, or with fewer examples than `fewest`, there is no interval.
    """
    n = arms[0].shape[1]
    of_examples = np.sum([arm.mean(0) for arm in arms], axis=0)  # [n]
    mean = float(of_examples.mean())
    if n < fewest:
        return Estimate(mean)
    own = left = float(of_examples.var(ddof=1)) / n  # Qi, which holds every arm's Qr
    units = []  # Qu and degrees of each arm in which units differ by more than Qr
    for arm in (arm for arm in arms if len(arm) > 1):
        U = len(arm)
        of_units = arm.mean(1, keepdims=True)
        rest = arm - of_units - arm.mean(0) + arm.mean()
        between = float(of_units.var(ddof=1)) / U
        unexplained = float((rest**2).sum()) / ((U - 1) * (n - 1)) / (U * n)
        left -= unexplained
        if between > unexplained:
            units.append((between, U - 1))
            own -= unexplained
    nu = _degrees(of_examples)
    parts = [*units, (max(own, 0.0), nu)]
    variance = sum(part for part, _ in parts)
    if variance < _ROUNDING**2:
        return Estimate(mean)
    degrees = variance / sum(part / of_part for part, of_part in parts)
    half_width = _half_width(degrees, variance)
    p_value = float(2 * stdtr(degrees, -abs(mean) / variance**0.5))
    return Estimate(mean, half_width, degrees, p_value, min(half_width, _half_width(nu, max(left, 0.0))))


def _half_width(degrees: float, variance: float) -> float:
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * variance**0.5


def _degrees(values: np.ndarray) -> float:
    """nu of values [n]."""
    squares = (values - values.mean()) ** 2
    excess = squares.var() / max(squares.mean(), _ROUNDING**2) ** 2 - 2
    return float(2 / (2 / (len(values) - 1) + max(excess, 0) / len(values)))


def linearised(metric: str, statistics: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """The score of each run [R, n, k] as a mean over its examples, or over groups of them: [R, n].

    These are the jackknife's pseudo-values, moved to the score as their mean (Efron 1982, chapter 2). The
    infinitesimal jackknife, a derivative, forgets how far a large group, or one of a class's few, drew the
    score to itself. `groups` [n] numbers groups.
    """
    if metric == "spearman":  # the ranks among these examples, which may be a part
        statistics = np.stack([number_statistics(metric, *one.T[1:3]) for one in statistics])
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        _, first = np.unique(groups[order], return_index=True)
        statistics = np.add.reduceat(statistics[:, order], first, axis=1)
    rows = []
    for one in statistics:
        total = one.sum(0)
        without = score(metric, total - _LEFT_OUT * one)
        rows.append(score(metric, total) + (len(one) - 1) * (without.mean() - without))
    return np.stack(rows)


def unit_scores(scores: np.ndarray, checkpoints: int) -> np.ndarray:
    """The units [U, n] of linearised scores [R, n]: seeds of one checkpoint, or checkpoints of several.

    A checkpoint counts with the mean of its seeds: that mean varies with pretraining and with fine-tuning. A
    baseline has no checkpoint.
    """
    return scores if checkpoints <= 1 else scores.reshape(checkpoints, -1, scores.shape[1]).mean(1)


def shared_seeds(scores: np.ndarray, checkpoints: int) -> np.ndarray:
    """What each seed does to all checkpoints of a recipe alike, from scores [R, n]: an arm [S, n] around 0.

    It cancels between checkpoints; a score, and a difference to a baseline, vary with it.
    """
    of_seeds = scores.reshape(checkpoints, -1, scores.shape[1]).mean(0)
    return of_seeds - of_seeds.mean(0)


def summarize(
    metric: str,
    statistics: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    checkpoints: int = 1,
    is_fixed: bool = False,
) -> Summary:
    """The mean score of runs [R, n, k] with its 95% interval; `is_fixed` where nothing in a run is random."""
    scores = linearised(metric, statistics, groups)
    units = unit_scores(scores, checkpoints)
    arms = [shared_seeds(scores, checkpoints)] if checkpoints > 1 else []
    has_interval = is_fixed or len(units) >= FEWEST_UNITS
    return Summary(
        mean=float(scores.mean()),
        half_width=estimate(units, *arms).half_width if has_interval else None,
        values=tuple(scores.mean(1).tolist()),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (Holm 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = most
    return adjusted
