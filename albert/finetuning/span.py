"""Answers as spans of a passage (Devlin et al. 2019, sections 4.2 and 4.3): a start and an end among its
tokens, or [CLS] for no answer. A long passage is cut into windows that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional as F

from albert.evaluation import mean_statistics
from albert.finetuning.encoding import Chosen, Encoded, Encoding, Predictions
from albert.model import Encoder, TokenClassifier
from albert.tasks import SpanExample, answer_scores
from data.tokenization import Tokenizer

_STRIDE = 128  # most tokens from one window to the next, as in BERT's run_squad
_LONGEST_QUESTION = 64  # tokens, likewise
LONGEST_ANSWER = 64  # tokens; run_squad has 30 in English, CMRC's answers are longer in characters


class _Found(NamedTuple):
    text: str
    margin: float  # by how much every window rather predicts no answer
    confidence: float  # probability of the text, in its window
    none_confidence: float  # and of no answer, the least of all windows


@dataclass(frozen=True)
class Span:
    """Learns spans. targets [S, 2]: first and last token of the answer in the window, 0 and 0 without it.

    characters [T, 2]: begin and end of a passage's token in its text; -1 for other tokens.
    """

    style: str
    has_unanswerable: bool

    def encode(self, examples: Sequence[SpanExample], tokenizer: Tokenizer, max_seq_length: int) -> Encoded:
        tokens_of = lru_cache(maxsize=64)(partial(_tokens, tokenizer))

        def windows(one: SpanExample) -> Iterator[Encoding]:
            tokens, places = tokens_of(one.passage)
            question = tokenizer.encode(one.question)[0][: min(_LONGEST_QUESTION, max_seq_length // 2)]
            head = [tokenizer.cls_id, *question, *[tokenizer.sep_id] * tokenizer.separators]
            answer = _answer_tokens(one, places)
            for begin, end in _windows(len(tokens), max_seq_length - len(head) - 1):
                ids = np.concatenate([head, tokens[begin:end], [tokenizer.sep_id]]).astype(np.int64)
                is_inside = answer and begin <= answer[0] and answer[1] < end
                target = np.array([answer]) + len(head) - begin if is_inside else np.array([(0, 0)])
                characters = np.pad(places[begin:end], ((len(head), 1), (0, 0)), constant_values=-1)
                yield Encoding(ids, len(head), targets=target, characters=characters)

        return Encoded.of([list(windows(one)) for one in examples])

    def model(self, encoder: Encoder) -> nn.Module:
        return TokenClassifier(encoder, 2)

    def loss(self, scores: Tensor, chosen: Chosen, encoded: Encoded) -> Tensor:
        lengths = chosen.batch.cu_seqlens.diff().tolist()
        padded = nn.utils.rnn.pad_sequence(scores.split(lengths), batch_first=True, padding_value=-1e30)
        targets = torch.from_numpy(encoded.targets[chosen.sequences]).to(scores.device, non_blocking=True)
        return F.cross_entropy(padded, targets)  # [S, L, 2] with [S, 2]: the mean over starts and ends

    def predict(self, scores: np.ndarray, examples: Sequence[SpanExample], encoded: Encoded) -> Predictions:
        found = [self._answer(scores, one, encoded, number) for number, one in enumerate(examples)]
        answers = tuple(one.text if self._is_answered(one) else "" for one in found)
        confidence = [one.confidence if self._is_answered(one) else one.none_confidence for one in found]
        pairs = self._scores(answers, examples)
        statistics = {"exact_match": mean_statistics(pairs[:, 0]), "answer_f1": mean_statistics(pairs[:, 1])}
        if self.style == "squad2":
            spans = self._scores([one.text for one in found], examples)[:, 1]
            empty = self._scores([""] * len(found), examples)[:, 1]
            margins = np.array([one.margin for one in found])
            statistics["best_f1"] = mean_statistics(at_best_threshold(spans, empty, margins))
        return Predictions(
            answers=answers,
            right=pairs[:, 0] == 1,
            statistics=statistics,
            confidence=tuple(np.array([one]) for one in confidence),
        )

    def _is_answered(self, found: _Found) -> bool:
        return not self.has_unanswerable or found.margin <= 0

    def _scores(self, answers: Sequence[str], examples: Sequence[SpanExample]) -> np.ndarray:
        """Exact match and F1 of each answer, [U, 2]."""
        return np.array(
            [answer_scores(a, one.answers, self.style) for a, one in zip(answers, examples, strict=True)]
        )

    def _answer(self, scores: np.ndarray, example: SpanExample, encoded: Encoded, number: int) -> _Found:
        """The best span of all windows. Its probability is that of its start times that of its end there."""
        assert encoded.characters is not None
        best, text, nothing, confidence, none_confidence = -np.inf, "", np.inf, 0.0, 1.0
        for sequence in range(encoded.first[number], encoded.first[number + 1]):
            begin, end = encoded.offsets[sequence], encoded.offsets[sequence + 1]
            places = np.flatnonzero(encoded.characters[begin:end, 0] >= 0)
            starts, ends = scores[begin:end][places].T
            nothing = min(nothing, float(scores[begin].sum()))
            shares = softmax(scores[begin:end], axis=0)
            none_confidence = min(none_confidence, float(shares[0].prod()))
            value, i, j = _best_span(starts, ends)
            if value > best:
                characters = encoded.characters[begin:end][places]
                best, text = value, example.passage[characters[i, 0] : characters[j, 1]]
                confidence = float(shares[places[i], 0] * shares[places[j], 1])
        return _Found(text, nothing - best, confidence, none_confidence)


def at_best_threshold(spans: np.ndarray, empty: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Scores of spans or of empty answers, by the threshold on margins that is best on the very same
    questions, as in SQuAD 2.0's script.

    >>> at_best_threshold(np.array([1.0, 0, 0.5]), np.array([0, 1.0, 0]), np.array([-2, 1, 0.5])).tolist()
    [1.0, 1.0, 0.5]
    """
    order = np.argsort(margins, kind="stable")
    gained = np.cumsum((spans - empty)[order])
    chosen = order[: int(gained.argmax()) + 1 if gained.max() > 0 else 0]
    scores = empty.copy()
    scores[chosen] = spans[chosen]
    return scores


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n], and the begin and end of each token in the text [n, 2]."""
    ids, starts = tokenizer.encode(text)
    ends = np.append(starts, len(text))[1:]
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        ends[at] = start + len(text[start:end].rstrip())
    return ids, np.stack([starts, ends], axis=-1)


def _windows(tokens: int, room: int) -> Iterator[tuple[int, int]]:
    """Yield the ends of the windows, of `room` tokens at most, that cover a passage together."""
    # each begins in the first half of the one before, so that some window holds the whole answer
    for begin in range(0, max(tokens, 1), min(_STRIDE, max(room // 2, 1))):
        end = min(begin + room, tokens)
        yield begin, end
        if end == tokens:
            break


def _answer_tokens(example: SpanExample, places: np.ndarray) -> tuple[int, int] | None:
    """The first and last token of the first gold answer that is in the passage."""
    for text, start in zip(example.answers, example.starts, strict=True):
        if start >= 0 and len(places):
            first = int(np.searchsorted(places[:, 0], start, side="right")) - 1
            last = int(np.searchsorted(places[:, 0], start + len(text))) - 1
            return max(first, 0), max(last, 0)
    return None


def _best_span(starts: np.ndarray, ends: np.ndarray) -> tuple[float, int, int]:
    """The largest start + end score of a span of 1 to LONGEST_ANSWER tokens, and its ends."""
    if not len(starts):
        return -np.inf, 0, 0
    table = starts[:, None] + ends[None, :]
    distance = np.arange(len(ends))[None, :] - np.arange(len(starts))[:, None]
    table[(distance < 0) | (distance >= LONGEST_ANSWER)] = -np.inf
    i, j = np.unravel_index(int(table.argmax()), table.shape)
    return float(table[i, j]), int(i), int(j)
