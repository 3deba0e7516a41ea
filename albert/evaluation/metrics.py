"""Metrics as functions of sums over examples, and chance levels.

Each example contributes k numbers, and the score is a function of their sums, so the score of any part or
resample of a test set is one matrix product. n = examples, C = labels, S = seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.sparse import issparse

from albert.evaluation.records import Calibration, CalibrationBin
from albert.tasks import ChoiceExample, Kind, Split, TaskData, entities_of, label_table


def chance_of(data: TaskData, split: Split) -> float:
    """The main metric of answers that ignore the input: the most frequent training label (for f1 the positive
    one), the set of several labels that is best in training, or a random choice; 0 for other kinds.
    """
    kind, metric = data.task.kind, data.task.metrics[0]
    if kind is Kind.CHOICE:
        counts = [len(one.choices) for one in split.examples if isinstance(one, ChoiceExample)]
        return float(np.mean([1 / count for count in counts]))
    if kind not in (Kind.SINGLE, Kind.PAIR, Kind.MULTILABEL):
        return 0.0
    train, gold = (label_table(part.examples, data.labels) for part in (data.splits["train"], split))
    C = gold.shape[1]
    if kind is Kind.MULTILABEL:
        chosen = _best_set(metric, train)
    else:
        chosen = np.arange(C) == (C - 1 if metric == "f1" else train.sum(0).argmax())
    always = np.broadcast_to(chosen, gold.shape)
    return float(score(metric, label_set_statistics(metric, always, gold).sum(0)))


def _best_set(metric: str, train: np.ndarray) -> np.ndarray:
    """The set of labels [C] that scores best if every training example [n, C] is given it."""
    if metric == "exact_match":
        sets, times = np.unique(train, axis=0, return_counts=True)
        return sets[times.argmax()]
    times = train.sum(0)
    if metric == "macro_f1":
        return times > 0  # a label's F1 is 0 without it
    frequent = np.argsort(-times, kind="stable")
    right, predicted = np.cumsum(times[frequent]), len(train) * np.arange(1, len(times) + 1)
    best = int((right / (predicted + right[-1])).argmax())
    return np.isin(np.arange(len(times)), frequent[: best + 1])


def leaves_chance(data: TaskData, split: Split, value: float) -> bool:
    """Whether a main metric on a split exceeds chance by more than two standard errors, of a share or of a
    correlation; also true where no score could, as on examples of one label.
    """
    chance, n = chance_of(data, split), len(split.examples)
    variance = 1 if data.task.metrics[0] in _CORRELATIONS else max(chance * (1 - chance), 1 / n)
    bound = chance + 2 * (variance / n) ** 0.5
    return value > bound or bound >= 1


def _ratio(below: int, sums: np.ndarray) -> np.ndarray:  # of the first sum to another
    return sums[..., 0] / np.maximum(sums[..., below], 1)


def _f1(sums: np.ndarray) -> np.ndarray:  # mean of classes; sums of right, predicted and gold, C of each
    right, predicted, gold = np.split(sums, 3, axis=-1)
    either = predicted + gold
    occurs = either > 0  # classes that are neither predicted nor gold do not count
    f1 = 2 * right / np.where(occurs, either, 1)
    return f1.sum(-1) / np.maximum(occurs.sum(-1), 1)


def _correlation(sums: np.ndarray) -> np.ndarray:  # sums of 1, x, y, xx, yy and xy
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return np.where(spread > 0, (n * xy - x * y) / np.sqrt(np.where(spread > 0, spread, 1)), 0.0)


_CORRELATIONS = ("matthews", "pearson", "spearman")
_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    # of sums of a value and of 1
    **dict.fromkeys(("accuracy", "mrr", "exact_match", "answer_f1", "best_f1"), partial(_ratio, 1)),
    **dict.fromkeys(("macro_f1", "micro_f1", "f1", "entity_f1"), _f1),
    # for two classes, the correlation of predicted and gold is Matthews's coefficient
    **dict.fromkeys(_CORRELATIONS, _correlation),
    "entity_precision": partial(_ratio, 1),
    "entity_recall": partial(_ratio, 2),
}
_QUERIES = 512  # ranked at once
_BINS = 10  # of a calibration error
_TIE = 1e-6  # cosines that differ by less are equal up to rounding


def score(metric: str, sums: np.ndarray) -> np.ndarray:
    """Scores [...] of sums [..., k] over examples.

    >>> float(score("accuracy", mean_statistics(np.array([1, 0, 1])).sum(0))) == 2 / 3
    True
    """
    return _SCORES[metric](np.asarray(sums, dtype=np.float64))


def mean_statistics(values: np.ndarray) -> np.ndarray:
    """Statistics [n, 2] of values [n] whose mean is the score."""
    return np.stack([values, np.ones(len(values))], axis=-1).astype(np.float64)


def label_set_statistics(metric: str, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Statistics [n, k] of sets of labels, both [n, C] of 0 and 1; of two labels the last is positive."""
    if metric in ("accuracy", "exact_match"):
        return mean_statistics((predicted == gold).all(-1))
    if metric == "matthews":
        return _correlation_statistics(predicted[:, -1], gold[:, -1])
    if metric == "f1":
        predicted, gold = predicted[:, -1:], gold[:, -1:]
    counts = [predicted * gold, predicted, gold]
    if metric == "micro_f1":
        counts = [one.sum(-1, keepdims=True) for one in counts]
    return np.concatenate(counts, axis=-1).astype(np.float64)


def _correlation_statistics(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Statistics [n, 6] of two variables [n]. Subtracting their means keeps sums of squares exact."""
    x, y = x - np.mean(x), y - np.mean(y)
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=-1)


def number_statistics(metric: str, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Statistics [n, 6] of predicted and gold numbers; for spearman, of their ranks in the whole set."""
    if metric == "spearman":
        from scipy.stats import rankdata  # which takes longer to import than to run

        predicted, gold = rankdata(predicted), rankdata(gold)
    return _correlation_statistics(predicted, gold)


def retrieval_statistics(states: np.ndarray, second: Sequence[str], is_query: np.ndarray) -> np.ndarray:
    """Statistics [n, 2] of the mean reciprocal rank (Voorhees 1999): each first sentence ranks the second
    sentences of all examples, and the reciprocal of its own one's rank counts.

    `states` [2n, H], of unit length, maybe sparse, are those of both sentences in turn; `second` are the n
    second sentences, equal texts being one candidate; `is_query` [n] selects the first sentences. Ties get
    their mean rank, so equal states find nothing.
    """
    _, first, own = np.unique(np.asarray(second), return_index=True, return_inverse=True)
    candidates = states[2 * first + 1]
    reciprocal = np.zeros(len(second))
    queries = np.flatnonzero(is_query)
    for block in np.array_split(queries, range(_QUERIES, len(queries), _QUERIES)):
        similarity = states[2 * block] @ candidates.T
        similarity = similarity.toarray() if issparse(similarity) else similarity
        mine = similarity[np.arange(len(block)), own[block], None]
        above = (similarity > mine + _TIE).sum(1)
        tied = (np.abs(similarity - mine) <= _TIE).sum(1)  # including its own
        reciprocal[block] = 1 / (above + (tied + 1) / 2)
    return np.stack([reciprocal, np.asarray(is_query, dtype=np.float64)], axis=-1)


def entity_statistics(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> np.ndarray:
    """Statistics [n, 3] of sentences' tags: right entities (type and both ends), predicted and gold ones."""
    pairs = [(entities_of(p), entities_of(g)) for p, g in zip(predicted, gold, strict=True)]
    return np.array([(len(p & g), len(p), len(g)) for p, g in pairs], dtype=np.float64)


def calibration(probabilities: np.ndarray, gold: np.ndarray) -> Calibration:
    """Expected calibration error of class probabilities [S, n, C] with gold labels [n] (Guo et al. 2017, eq.
    3), as the mean over the seeds: an overconfident seed must not cancel an underconfident one. The bins hold
    the predictions of all seeds.

    >>> round(calibration(np.array([[[0.8, 0.2], [0.2, 0.8]]]), np.array([0, 0])).ece, 3)
    0.3
    """
    confidence = probabilities.max(-1)  # [S, n]
    right = probabilities.argmax(-1) == gold  # [S, n]
    bin_of = np.minimum(np.ceil(confidence * _BINS).astype(int) - 1, _BINS - 1)
    filled, error = [], 0.0
    for number in np.unique(bin_of).tolist():
        inside = bin_of == number
        mean, accuracy = float(confidence[inside].mean()), float(right[inside].mean())
        filled.append(CalibrationBin(number / _BINS, (number + 1) / _BINS, int(inside.sum()), mean, accuracy))
        of_seeds = np.where(inside, confidence - right, 0).sum(1)  # [S]
        error += float(np.abs(of_seeds).mean()) / len(gold)
    return Calibration(error, tuple(filled))
