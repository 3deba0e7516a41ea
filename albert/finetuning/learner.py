"""The interface of a kind of task: how to encode its examples, train a model and read its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from albert.finetuning.encoding import Chosen, Encoded
from albert.model import Encoder
from data.tokenization import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A model's predictions on a split. n = examples, C = labels or choices."""

    answers: tuple[str, ...]  # as text, one for each example
    right: np.ndarray | None  # [n] bool; None if answers are numbers, which are near rather than right
    statistics: Mapping[str, np.ndarray]  # by metric, [n, k]: see `albert.evaluation.metrics`
    labels: np.ndarray | None = None  # predicted, [n] for single and pair, [n, C] of 0 and 1 for multilabel
    probabilities: np.ndarray | None = None  # [n, C]
    tags: tuple[tuple[str, ...], ...] | None = None  # predicted, for every token
    confidence: tuple[np.ndarray, ...] | None = None  # of the prediction: spans [1], tags [tokens]


class Learner(Protocol):
    """One kind of task with its labels; examples are of the kind's type."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        """Encode the examples as token ids."""

    def model(self, encoder: Encoder) -> nn.Module:
        """The encoder with a new head, which returns a row of scores for each sequence or token."""

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        """The mean loss of the batch, a scalar."""

    def predict(self, scores: np.ndarray, examples: Sequence[Any], encoded: Encoded) -> Predictions:
        """Read predictions from the scores of all sequences [S, ..] or tokens [T, ..] of a split."""
