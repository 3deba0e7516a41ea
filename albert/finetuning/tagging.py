"""Tags for tokens (Devlin et al. 2019, section 5.3), predicted at the first piece of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import entity_statistics
from albert.finetuning.encoding import Chosen, Encoded, Encoding, Predictions
from albert.model import IGNORED, Encoder, TokenClassifier
from albert.tasks import TaggedExample
from data.tokenization import Tokenizer


@dataclass(frozen=True)
class Tagging:
    """Learns tags. targets [T]: the index of the tag at the first piece of a token, IGNORED elsewhere. A long
    sentence is split into several sequences, so that every token gets a tag.
    """

    labels: Sequence[str]

    def encode(self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        return Encoded.of([list(self._parts(one, tokenizer, max_seq_length - 2)) for one in examples])

    def _parts(self, example: TaggedExample, tokenizer: Tokenizer, room: int) -> Iterator[Encoding]:
        """Yield a sequence for every `room` pieces."""
        ids: list[int] = []
        tags: list[int] = []
        for token, tag in zip(example.tokens, example.tags, strict=True):
            # a token without a piece, such as a space, needs a tag too
            pieces = tokenizer.encode(token)[0].tolist() or [tokenizer.unknown_id]
            ids += pieces
            # examples without tags have O, which labels that Trainer saved may lack
            tags += [self.labels.index(tag) if tag in self.labels else 0] + [IGNORED] * (len(pieces) - 1)
        for begin in range(0, len(ids), room):
            part = np.array([tokenizer.cls_id, *ids[begin : begin + room], tokenizer.sep_id])
            yield Encoding(part, targets=np.array([IGNORED, *tags[begin : begin + room], IGNORED]))

    def model(self, encoder: Encoder) -> nn.Module:
        return TokenClassifier(encoder, len(self.labels))

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        tags = torch.from_numpy(encoded.targets[chosen.tokens]).to(scores.device, non_blocking=True)
        return F.cross_entropy(scores, tags, ignore_index=IGNORED)

    def predict(self, scores: np.ndarray, examples: Sequence[TaggedExample], encoded: Encoded) -> Predictions:
        is_first = encoded.targets != IGNORED
        of_tokens, confidence = scores.argmax(-1)[is_first], softmax(scores, axis=-1).max(-1)[is_first]
        ends = np.cumsum([len(one.tokens) for one in examples])
        tags = tuple(
            well_formed([self.labels[number] for number in part]) for part in np.split(of_tokens, ends[:-1])
        )
        sums = entity_statistics(tags, [one.tags for one in examples])
        return Predictions(
            answers=tuple(one.entities(of_one) for one, of_one in zip(examples, tags, strict=True)),
            right=(sums[:, 0] == sums[:, 1]) & (sums[:, 0] == sums[:, 2]),
            statistics=dict.fromkeys(("entity_f1", "entity_precision", "entity_recall"), sums),
            tags=tags,
            confidence=tuple(np.split(confidence, ends[:-1])),
        )


def well_formed(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in which every entity begins with B-, as those of a task's files must: an I- that continues none
    begins one, as it does for the metric (see `entities_of`).

    >>> well_formed(["I-PER", "I-PER", "O", "I-LOC", "I-PER"])
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-PER')
    """
    return tuple(
        f"B{tag[1:]}" if tag.startswith("I-") and before[1:] != tag[1:] else tag
        for before, tag in pairwise(["O", *tags])
    )
