"""What a checkpoint knows before fine-tuning: masked words and sentence order in held-out documents, and
domain words masked whole; and how much each of its layers changes (Lan et al. 2020, figure 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from albert.batching import InstanceStream
from albert.checkpoints import PADDING_OF_TABLES, load_model, read_checkpoint
from albert.evaluation.held_out import BATCH_TOKENS, outcomes_of, scores_of, sums_of
from albert.evaluation.records import Intrinsic
from albert.model import Batch, Encoder, PretrainingModel, pack
from albert.runtime import default_device
from data.tokenization import Tokenizer

HELD_OUT_TOKENS = 16_384
_CLOZE_BATCH = 64  # sentences


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The documents of a corpus that pretraining leaves out."""

    shards: tuple[Path, ...]
    share: float  # see `albert.batching.is_held_out`
    is_read: bool = False  # the checkpoint was trained on them: it has no figure of them


@dataclass(frozen=True, slots=True)
class Cloze:
    """A domain word in a sentence."""

    sentence: str
    word: str


def measure_intrinsic(
    checkpoint: Path, *, domain: HeldOut | None, general: HeldOut | None, cloze: Sequence[Cloze] = ()
) -> Intrinsic:
    """Measure a checkpoint in fp32, always on the same documents with the same masks. A corpus with another
    vocabulary, or with longer sequences than the model reads, is skipped; so is a head that it lacks.
    """
    read = read_checkpoint(checkpoint)
    if read.report.lacks("mlm."):
        return Intrinsic()
    tokenizer, model = read.tokenizer(), read.build().to(default_device()).eval()
    has_order = not (read.report.lacks("sop.") or read.report.lacks("encoder.pooler."))
    figures: dict[str, float | None] = {}
    outcomes = None
    for name, held_out in (("domain", domain), ("general", general)):
        if held_out and (measured := _held_out(model, held_out)):
            scores, outcomes = scores_of(*measured), outcomes_of(*measured) if name == "general" else None
            # nor has it the order of other documents, which would stand beside that of these
            told = dict.fromkeys(scores) if held_out.is_read else scores
            figures |= {f"{name}_{one}": told[one] for one in ("mlm_loss", "mlm_accuracy")}
            if has_order and "sop_accuracy" in told:
                figures.setdefault("sop_accuracy", told["sop_accuracy"])
    right, words = _cloze(model, tokenizer, cloze)
    return Intrinsic(
        **figures,
        general_outcomes=outcomes,
        cloze_accuracy=right / words if words else None,
        cloze_words=words,
    )


def measure_mlm_losses(checkpoint: Path, shards: Sequence[Path]) -> list[float | None]:
    """The mean MLM loss of a checkpoint in nats on each shard, always with the same masks; None if the shard
    has another vocabulary, or longer sequences than the model reads.
    """
    model, _ = load_model(checkpoint)
    model.to(default_device()).eval()
    measured = [_held_out(model, HeldOut((shard,), 1.0)) for shard in shards]
    return [scores_of(*one)["mlm_loss"] if one else None for one in measured]


def _held_out(model: PretrainingModel, held_out: HeldOut) -> tuple[np.ndarray, np.ndarray] | None:
    """The sums [R, 6] and the documents [R] of held-out instances; None if there are none, or if the model
    cannot read them.
    """
    stream = InstanceStream(held_out.shards, batch_tokens=BATCH_TOKENS, held_out_share=held_out.share)
    config, info = model.config, stream.info
    has_vocabulary = 0 <= config.vocab_size - info.vocab_size < PADDING_OF_TABLES
    can_read = has_vocabulary and info.max_seq_length <= config.max_position_embeddings
    drawn = stream.held_out(HELD_OUT_TOKENS) if can_read else None
    if drawn is None:
        return None
    return sums_of(model, stream, drawn).cpu().numpy(), drawn.doc_keys


@torch.no_grad()
def _cloze(model: PretrainingModel, tokenizer: Tokenizer, cloze: Sequence[Cloze]) -> tuple[int, int]:
    """The number of words whose tokens are all predicted, and the number of words."""
    device = next(model.parameters()).device
    masked = list(_masked(cloze, tokenizer, model.config.max_position_embeddings))
    right = 0
    for begin in range(0, len(masked), _CLOZE_BATCH):
        sequences, places, gold = zip(*masked[begin : begin + _CLOZE_BATCH], strict=True)
        batch = pack(sequences).to(device)
        at = np.concatenate(list(map(np.add, places, batch.cu_seqlens.tolist())))
        hidden = model.encoder(batch)[torch.from_numpy(at).to(device)]
        predicted = model.mlm_logits(hidden).argmax(-1).cpu().numpy()
        words = np.split(predicted, np.cumsum([len(tokens) for tokens in gold])[:-1])
        right += sum(map(np.array_equal, words, gold))
    return right, len(masked)


def _masked(
    cloze: Sequence[Cloze], tokenizer: Tokenizer, longest: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yield sequences with the word's tokens masked, the positions of these, and the tokens."""
    for one in cloze:
        ids, starts = tokenizer.encode(one.sentence)
        begin = one.sentence.find(one.word)
        inside = np.flatnonzero((starts >= begin) & (starts < begin + len(one.word)))
        if begin < 0 or not len(inside) or inside[-1] + 2 >= longest:
            continue
        masked = ids.copy()
        masked[inside] = tokenizer.mask_id
        yield [tokenizer.cls_id, *masked[: longest - 2].tolist(), tokenizer.sep_id], inside + 1, ids[inside]


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Means over the tokens of a batch."""

    layer: int  # from 1
    distance: float  # L2 norm of output - input
    cosine: float  # of the angle between input and output


@torch.no_grad()
def measure_layer_changes(encoder: Encoder, batch: Batch) -> tuple[LayerChange, ...]:
    """Distance and cosine between the input and the output of every layer on a batch."""
    was_training = encoder.training
    encoder.eval()
    states = [state.float() for state in encoder.hidden_states(batch)]
    encoder.train(was_training)
    return tuple(
        LayerChange(
            number,
            (after - before).norm(dim=-1).mean().item(),
            F.cosine_similarity(before, after, dim=-1).mean().item(),
        )
        for number, (before, after) in enumerate(pairwise(states), 1)
    )
