"""What a kind of task has to bring: how examples become tokens, what is trained, what is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from albert.finetuning.encoding import Chosen, Encoded
from albert.model import Encoder
from albert.tasks import AnyExample
from data.tokenization import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of a split. n = examples, C = labels or choices."""

    answers: tuple[str, ...]  # for people, one an example
    right: np.ndarray | None  # [n] bool; None where an answer is not right or wrong, but near or far
    statistics: Mapping[str, np.ndarray]  # by metric, [n, k]: see `albert.metrics`
    labels: np.ndarray | None = None  # [n] predicted label, of single and pair
    probabilities: np.ndarray | None = None  # [n, C]
    tags: tuple[tuple[str, ...], ...] | None = None  # predicted, of every token


class Learner(Protocol):
    """One kind of task with its labels."""

    per_token: bool  # whether the model gives a row for each token, or for each sequence

    def encode(self, examples: Sequence[AnyExample], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        """The examples as token ids."""

    def model(self, encoder: Encoder) -> nn.Module:
        """The encoder with a new head; called with a batch it gives rows of scores."""

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        """Mean over the batch, a scalar."""

    def predict(self, scores: np.ndarray, examples: Sequence[AnyExample], encoded: Encoded) -> Predictions:
        """From the scores of all sequences [S, ..] or tokens [T, ..] of a split."""

    def gold(self, examples: Sequence[AnyExample]) -> tuple[str, ...]:
        """What would have been right, for people."""
