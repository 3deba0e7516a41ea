"""Choosing among several answers: each is scored with the passage and the question (Radford et al. 2018,
section 3.3; the layout of C3's baseline, Sun et al. 2020: passage [SEP] question and answer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import mean_statistics
from albert.finetuning.encoding import Chosen, Encoded, Predictions, encode_texts
from albert.model import Encoder, SequenceClassifier
from albert.tasks import ChoiceExample, Pooling
from data.tokenization import Tokenizer


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
        return F.cross_entropy(table, answers.to(scores.device))

    def predict(self, scores: np.ndarray, examples: Sequence[ChoiceExample], encoded: Encoded) -> Predictions:
        counts = np.diff(encoded.first)[:, None]
        table = np.full((len(counts), counts.max()), -np.inf)
        table[np.arange(counts.max()) < counts] = scores[:, 0]
        predicted = table.argmax(-1)
        right = predicted == encoded.targets
        return Predictions(
            answers=tuple(one.choices[at] for one, at in zip(examples, predicted, strict=True)),
            right=right,
            statistics={"accuracy": mean_statistics(right)},
            probabilities=softmax(table, axis=-1),
        )
