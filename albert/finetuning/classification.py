"""Labels of sentences and pairs, one each (Devlin et al. 2019, section 4.1) or any number; and the right one
of several answers, each scored with the passage and the question (Radford et al. 2018, section 3.3; in the
layout of C3's baseline, Sun et al. 2020: passage [SEP] question and answer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import label_set_statistics, mean_statistics
from albert.finetuning.encoding import Chosen, Encoded, Predictions, encode_texts
from albert.model import Encoder, SequenceClassifier
from albert.tasks import ChoiceExample, Example, Pooling, label_table
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
        return F.cross_entropy(scores, labels.to(scores.device, non_blocking=True))

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        predicted, gold, eye = scores.argmax(-1), encoded.targets, np.eye(len(self.labels))
        return Predictions(
            answers=tuple(self.labels[label] for label in predicted),
            right=predicted == gold,
            statistics={name: label_set_statistics(name, eye[predicted], eye[gold]) for name in self.metrics},
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
        return F.binary_cross_entropy_with_logits(scores, gold.to(scores, non_blocking=True))

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        probabilities, gold = expit(scores), encoded.targets
        predicted = (probabilities > 0.5).astype(np.int64)
        names = np.array(self.labels, dtype=object)
        return Predictions(
            answers=tuple(self.separator.join(names[row > 0]) for row in predicted),
            right=(predicted == gold).all(-1),
            statistics={name: label_set_statistics(name, predicted, gold) for name in self.metrics},
            probabilities=probabilities,
        )


@dataclass(frozen=True)
class Choice:
    """Learns choices. targets [U]: the index of the right answer. Each answer is a sequence with a score."""

    pooling: Pooling

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        rows = ([(one.passage, f"{one.question} {choice}") for choice in one.choices] for one in examples)
        targets = np.array([one.answer for one in examples])
        return encode_texts(rows, tokenizer, max_seq_length, targets)

    def model(self, encoder: Encoder) -> nn.Module:
        return SequenceClassifier(encoder, 1, self.pooling)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        table = nn.utils.rnn.pad_sequence(
            scores[:, 0].split(np.diff(chosen.first).tolist()), batch_first=True, padding_value=-torch.inf
        )
        answers = torch.from_numpy(encoded.targets[chosen.examples])
        return F.cross_entropy(table, answers.to(scores.device, non_blocking=True))

    def predict(self, scores: np.ndarray, examples: Sequence[ChoiceExample], encoded: Encoded) -> Predictions:
        counts = np.diff(encoded.first)[:, None]
        table = np.full((len(counts), counts.max()), -np.inf)
        table[np.arange(counts.max()) < counts] = scores[:, 0]
        best = table == table.max(-1, keepdims=True)
        # equal scores share a point: in some files the right answer always comes first
        points = best[np.arange(len(best)), encoded.targets] / best.sum(-1)
        return Predictions(
            answers=tuple(one.choices[at] for one, at in zip(examples, table.argmax(-1), strict=True)),
            right=points == 1,
            statistics={"accuracy": mean_statistics(points)},
            probabilities=softmax(table, axis=-1),
        )
