"""Choosing among several answers: each is scored with the passage and the question (Radford et al. 2018,
section 3.3; the layout of C3's baseline, Sun et al. 2020: passage [SEP] question and answer).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import mean_statistics
from albert.finetuning.encoding import Chosen, Encoded, encode_parts
from albert.finetuning.learner import Predictions
from albert.model import Encoder, SequenceClassifier
from albert.tasks import ChoiceExample, Pooling
from data.tokenization import Tokenizer


class Choice:
    """Learns choices. targets [U]: the index of the right answer. Each answer is a sequence with a score."""

    per_token = False

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        parts = []
        for one in examples:
            passage = tokenizer.encode(one.passage)[0]
            parts += [(passage, tokenizer.encode(f"{one.question} {c}")[0]) for c in one.choices]
        first = np.concatenate([[0], np.cumsum([len(one.choices) for one in examples])])
        targets = np.array([one.answer for one in examples])
        return encode_parts(parts, tokenizer, max_seq_length, first=first, targets=targets)

    def model(self, encoder: Encoder) -> nn.Module:
        return SequenceClassifier(encoder, 1, self.pooling)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        place, counts = _places(chosen.first)
        table = scores.new_full((len(counts), int(counts.max())), -torch.inf)
        rows = np.repeat(np.arange(len(counts)), counts)
        table[torch.from_numpy(rows), torch.from_numpy(place)] = scores[:, 0]
        answers = torch.from_numpy(encoded.targets[chosen.examples])
        return F.cross_entropy(table, answers.to(scores.device))

    def predict(self, scores: np.ndarray, examples: Sequence[ChoiceExample], encoded: Encoded) -> Predictions:
        place, counts = _places(encoded.first)
        table = np.full((len(counts), int(counts.max())), -np.inf)
        table[np.repeat(np.arange(len(counts)), counts), place] = scores[:, 0]
        predicted = table.argmax(-1)
        right = predicted == encoded.targets
        return Predictions(
            answers=tuple(one.choices[at] for one, at in zip(examples, predicted, strict=True)),
            right=right,
            statistics={"accuracy": mean_statistics(right)},
            probabilities=softmax(table, axis=-1),
        )


def _places(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The index of each sequence within its example, and the number of sequences of each example."""
    counts = np.diff(first)
    return np.arange(first[-1]) - np.repeat(first[:-1], counts), counts
