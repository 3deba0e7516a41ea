"""Whether a model is as sure as it is right.

S = seeds, n = examples, C = labels.
"""

from __future__ import annotations

import numpy as np

from albert.evaluation.records import Calibration, CalibrationBin


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
