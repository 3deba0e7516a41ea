"""Labels of sentences and pairs: one each (Devlin et al. 2019, section 4.1), or any number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import class_statistics, label_set_statistics
from albert.finetuning.encoding import Chosen, Encoded, Predictions, encode_texts
from albert.model import Encoder, SequenceClassifier
from albert.tasks import Example, Pooling, label_table
from data.tokenization import Tokenizer


@dataclass(frozen=True)
class Classification:
    """Learns labels. targets [U]: the index of the label."""

    labels: Sequence[str]
    metrics: Sequence[str]
    pooling: Pooling

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        rows = ([one.texts()] for one in examples)
        return encode_texts(rows, tokenizer, max_seq_length, self.targets(examples))

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        return label_table(examples, self.labels).argmax(-1)

    def model(self, encoder: Encoder) -> nn.Module:
        return SequenceClassifier(encoder, len(self.labels), self.pooling)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        labels = torch.from_numpy(encoded.targets[chosen.examples])
        return F.cross_entropy(scores, labels.to(scores.device))

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        predicted, gold = scores.argmax(-1), encoded.targets
        C = len(self.labels)
        return Predictions(
            answers=tuple(self.labels[label] for label in predicted),
            right=predicted == gold,
            statistics={name: class_statistics(name, predicted, gold, C) for name in self.metrics},
            labels=predicted,
            probabilities=softmax(scores, axis=-1),
        )


@dataclass(frozen=True)
class MultiLabel(Classification):
    """Learns any number of labels, each by a sigmoid of its own. targets [U, C]: 1 for labels of the text."""

    separator: str

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        return label_table(examples, self.labels).astype(np.int64)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        gold = torch.from_numpy(encoded.targets[chosen.examples])
        return F.binary_cross_entropy_with_logits(scores, gold.to(scores))

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        predicted, gold = (scores > 0).astype(np.int64), encoded.targets
        names = np.array(self.labels, dtype=object)
        return Predictions(
            answers=tuple(self.separator.join(names[row > 0]) for row in predicted),
            right=(predicted == gold).all(-1),
            statistics={name: label_set_statistics(name, predicted, gold) for name in self.metrics},
            labels=predicted,
            probabilities=expit(scores),
        )
