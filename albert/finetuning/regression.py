"""Numbers for pairs of sentences: trained (Devlin et al. 2019, section 4.1), or the cosine of mean-pooled
states without training (Reimers and Gurevych 2019, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import number_statistics, retrieval_statistics
from albert.finetuning.encoding import Chosen, Encoded, Predictions, encode_texts
from albert.model import Encoder, MeanPooler, SequenceClassifier
from albert.tasks import Example, Pooling
from data.tokenization import Tokenizer


def _numbers(examples: Sequence[Example]) -> np.ndarray:
    return np.array([float(one.label) for one in examples])


def _predictions(predicted: np.ndarray, gold: np.ndarray) -> Predictions:
    answers = tuple(f"{value:.6g}" for value in predicted)
    # as they are written: cosines of equal texts differ in later digits, which ranks would make much of
    written = np.array(answers, dtype=np.float64)
    return Predictions(
        answers=answers,
        right=None,
        statistics={name: number_statistics(name, written, gold) for name in ("pearson", "spearman")},
    )


@dataclass(frozen=True)
class Regression:
    """Learns numbers, in units of their deviation from the mean. targets [U]: the gold number."""

    pooling: Pooling
    mean: float = 0.0
    deviation: float = 1.0

    def fitted(self, targets: np.ndarray) -> Regression:
        """The same for the numbers of a training set, whatever their scale."""
        return replace(self, mean=float(targets.mean()), deviation=float(targets.std()) or 1.0)

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        rows = ([one.texts()] for one in examples)
        return encode_texts(rows, tokenizer, max_seq_length, _numbers(examples))

    def model(self, encoder: Encoder) -> nn.Module:
        return SequenceClassifier(encoder, 1, self.pooling)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        gold = torch.from_numpy(encoded.targets[chosen.examples]).to(scores, non_blocking=True)
        return F.mse_loss(scores[:, 0], (gold - self.mean) / self.deviation)

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        return _predictions(scores[:, 0] * self.deviation + self.mean, encoded.targets)

    @torch.no_grad()
    def give_units(self, classifier: nn.Linear) -> None:
        """Change a trained head so that its scores are the numbers themselves."""
        classifier.weight.mul_(self.deviation)
        classifier.bias.mul_(self.deviation).add_(self.mean)


@dataclass(frozen=True)
class Similarity:
    """Compares sentences without training. targets [U]: the gold number. Each example is two sequences. mrr:
    how well the first sentences of the most similar pairs retrieve the second among those of all examples.
    """

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        rows = ([(text,) for text in one.texts()] for one in examples)
        return encode_texts(rows, tokenizer, max_seq_length, _numbers(examples))

    def model(self, encoder: Encoder) -> nn.Module:
        return MeanPooler(encoder)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        raise AssertionError("nothing is trained")

    def predict(self, scores: np.ndarray, examples: Sequence[Example], encoded: Encoded) -> Predictions:
        unit, gold = scores, encoded.targets
        if not issparse(scores):  # TF-IDF vectors have unit length
            unit = scores / np.maximum(np.linalg.norm(scores, axis=-1, keepdims=True), 1e-12)
        predicted = _predictions((unit[::2] * unit[1::2]).sum(-1), gold)
        # only the pairs that are labelled most similar should find each other
        second = [one.pair or "" for one in examples]
        ranks = retrieval_statistics(unit, second, gold == gold.max())
        return replace(predicted, statistics={**predicted.statistics, "mrr": ranks})
