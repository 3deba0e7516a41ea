"""The interface of a kind of task: how to encode its examples, train a model and read its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor, nn

from albert.finetuning.classification import Choice, Classification, MultiLabel
from albert.finetuning.encoding import Chosen, Encoded, Predictions
from albert.finetuning.regression import Regression, Similarity
from albert.finetuning.span import Span
from albert.finetuning.tagging import Tagging
from albert.model import Encoder
from albert.tasks import Kind, Pooling, Task
from data.tokenization import Tokenizer


class Learner(Protocol):
    """One kind of task with its labels; examples are of the kind's type."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        """Encode the examples as token ids."""

    def model(self, encoder: Encoder) -> nn.Module:
        """The encoder with a new head, which returns a row of scores for each sequence or token."""

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        """The mean loss of the batch, a scalar, without waiting for a GPU that still computes the scores."""

    def predict(self, scores: np.ndarray, examples: Sequence[Any], encoded: Encoded) -> Predictions:
        """Read predictions from the scores of all sequences [S, ..] or tokens [T, ..] of a split."""


def find_learner(
    task: Task, labels: Sequence[str], pooling: Pooling | Literal["auto"], has_unanswerable: bool
) -> Learner:
    """The learner of the task's kind."""
    assert pooling != "auto"
    match task.kind:
        case Kind.SINGLE | Kind.PAIR | None:
            return Classification(labels, task.metrics, pooling)
        case Kind.MULTILABEL:
            return MultiLabel(labels, task.metrics, pooling, task.separator)
        case Kind.CHOICE:
            return Choice(pooling)
        case Kind.SPAN:
            return Span(task.answers, has_unanswerable=has_unanswerable)
        case Kind.TOKENS:
            return Tagging(labels)
        case Kind.REGRESSION:
            return Regression(pooling)
        case Kind.SIMILARITY:
            return Similarity()
