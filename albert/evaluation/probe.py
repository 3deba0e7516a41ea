"""Whether a checkpoint knows its language: its MLM loss on held-out sentences before training.

A wrong layout, activation, head count or vocabulary loads without an error, but the loss is then near ln V,
that of a model that knows nothing (V = vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import torch
from pydantic import TypeAdapter

from albert.batching import mask_batch
from albert.model import Batch, PretrainingModel, pack
from data.errors import InputError
from data.instances import MaskRule, tokenize_documents
from data.tokenization import Tokenizer

# whole words, 15% of the tokens, whatever the objective of the training
PROBE_RULE = MaskRule(rate=0.15, max_ngram=1)
PROBE_SENTENCES = 300
# share of ln V; a model that knows only token frequencies is below it, a trained one far below
SUSPICIOUS_SHARE = 0.8
# nats above ln V that only confident mistakes bring: tiny-zh with a permuted vocabulary is 3.5 above
IMPOSSIBLE_NATS = 1.0
FEWEST_TOKENS = 30  # with fewer nothing is suspicious yet
_BATCH_SENTENCES = 64


@dataclass(frozen=True, slots=True)
class Probe:
    """How well a model predicts masked whole words of unseen text."""

    mlm_loss: float
    mlm_accuracy: float
    uniform_loss: float  # ln V, of a model that knows nothing
    masked_tokens: int
    sentences: int

    @property
    def is_suspicious(self) -> bool:
        return self.masked_tokens >= FEWEST_TOKENS and self.mlm_loss > SUSPICIOUS_SHARE * self.uniform_loss

    def describe(self) -> str:
        """One line for a log or a report."""
        line = (
            f"the checkpoint predicted masked whole words with a loss of {self.mlm_loss:.2f} (a model that "
            f"knows nothing has ln V = {self.uniform_loss:.2f}) and an accuracy of "
            f"{100 * self.mlm_accuracy:.1f}%, on {self.masked_tokens:,} tokens in {self.sentences:,} "
            f"sequence{'s' if self.sentences > 1 else ''}"
        )
        return line if self.masked_tokens >= FEWEST_TOKENS else f"{line}, too few to judge by"

    def warning(self) -> str | None:
        """A line on what is probably wrong; None if nothing is."""
        if not self.is_suspicious:
            return None
        return (
            f"the checkpoint predicted masked words hardly better than chance (MLM loss {self.mlm_loss:.2f}, "
            f"ln V {self.uniform_loss:.2f}): its MLM head is untrained, or its layout, activation, head "
            "count or vocabulary is not what the config says"
        )

    def check(self) -> None:
        """Raise InputError for a model that does far worse than one that knows nothing."""
        if self.masked_tokens >= FEWEST_TOKENS and self.mlm_loss > self.uniform_loss + IMPOSSIBLE_NATS:
            raise InputError(
                f"the checkpoint predicts masked words far worse than chance (MLM loss {self.mlm_loss:.2f}, "
                f"ln V {self.uniform_loss:.2f}): its vocabulary or its config is not that of its weights; "
                "get the checkpoint's own files, or start from its size"
            )

    def to_record(self) -> dict[str, float]:
        """The entries of a run's history."""
        return {f"probe_{name}": value for name, value in asdict(self).items()}

    @classmethod
    def from_record(cls, record: Mapping[str, float]) -> Probe | None:
        """Read the probe of a history's record, if it has one."""
        own = {key: value for name, value in record.items() if (key := name.removeprefix("probe_")) != name}
        return TypeAdapter(cls).validate_python(own) if own else None


@torch.no_grad()
def probe_model(model: PretrainingModel, batches: Iterable[Batch]) -> Probe:
    """Measure masked batches in fp32. Raises InputError if nothing in them is masked."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    loss, correct, masked, sentences = 0.0, 0, 0, 0
    for batch in batches:
        output = model(batch.to(device))
        count = int(output.mlm_count)
        loss += output.mlm_loss.item() * count
        correct += int(output.mlm_correct)
        masked += count
        sentences += batch.sequences
    model.train(was_training)
    if not masked:
        raise InputError("no held-out document to probe the checkpoint with: give the corpus more documents")
    return Probe(loss / masked, correct / masked, math.log(model.config.vocab_size), masked, sentences)


def probe_sentences(
    model: PretrainingModel, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> Probe:
    """Measure sentences given as words, long ones in parts. Raises InputError if there is nothing to mask."""
    longest = model.config.max_position_embeddings - 2
    words = [word for sentence in sentences for word in (*sentence, "\n")]
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    lines = np.array([len(sentences)])
    tokens = tokenize_documents("".join(words), lengths, lines, tokenizer, longest)
    sequences, starts = [], []
    for begin, end in pairwise(tokens.pieces.tolist()):
        sequences.append([tokenizer.cls_id, *tokens.input_ids[begin:end].tolist(), tokenizer.sep_id])
        # a word that was cut begins again
        starts.append(np.concatenate([[True, True], tokens.word_starts[begin + 1 : end], [True]]))
    batches = []
    for begin in range(0, len(sequences), _BATCH_SENTENCES):
        part = slice(begin, begin + _BATCH_SENTENCES)
        word_starts = np.concatenate(starts[part])
        batch = pack(sequences[part])
        batches.append(mask_batch(batch, tokenizer, PROBE_RULE, seed=begin, word_starts=word_starts))
    if not any(len(batch.masked()[0]) for batch in batches):  # it may hold nothing but unknown tokens
        raise InputError("no word to mask in the text to probe with: give it a few sentences")
    return probe_model(model, batches)
