"""Scores on held-out documents, each with an interval over documents.

T = tokens of a batch, S = its sequences, R = instances, D = documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from albert.batching import Instances, InstanceStream, held_out_rows
from albert.evaluation.contrasts import pack
from albert.evaluation.intervals import estimate, linearised
from albert.model import IGNORED, Batch, PretrainingModel
from data.cleaning import Letters
from data.instances import take_ranges

BATCH_TOKENS = 4096
SEEN_NGRAM = 13  # tokens (Brown et al. 2020, appendix C: 13 words)
_MOST_SEARCHED = 1 << 28  # tokens of training text: half a minute
# columns of the sums, and the figures that are ratios of two
_MLM_LOSS, _MLM_CORRECT, _MLM_COUNT, _SOP_LOSS, _SOP_CORRECT, _SOP_COUNT = range(6)
_MLM = {"mlm_loss": (_MLM_LOSS, _MLM_COUNT), "mlm_accuracy": (_MLM_CORRECT, _MLM_COUNT)}
_SOP = {"sop_loss": (_SOP_LOSS, _SOP_COUNT), "sop_accuracy": (_SOP_CORRECT, _SOP_COUNT)}


@torch.no_grad()
def sums_of(
    model: PretrainingModel, stream: InstanceStream, instances: Instances, *, part: tuple[int, int] = (0, 1)
) -> torch.Tensor:
    """Sums of every instance, [R, 6] fp64: MLM loss, correct and count, then those of sentence order.

    In fp32, as weights are stored: bf16 would round what a short training adds to a start stored in bf16.
    `part` (k, n) computes every n-th batch from the k-th on; the others stay 0.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    sums = torch.zeros(len(instances), 6, dtype=torch.float64, device=device)
    rows = held_out_rows(instances, BATCH_TOKENS)[part[0] :: part[1]]
    for batch, of_batch in zip(stream.pack_held_out(instances, rows), rows, strict=True):
        sums[torch.from_numpy(of_batch).to(device)] = _sums(model, batch.to(device))
    model.train(was_training)
    return sums


def _sums(model: PretrainingModel, batch: Batch) -> torch.Tensor:
    """Sums of each sequence of a batch, [S, 6]."""
    index, labels = batch.masked()
    hidden = model.encoder(batch, torch.cat([index, batch.cu_seqlens[:-1]]))
    n = len(index)
    losses, predicted = model.mlm_losses(hidden[:n], labels)
    of_sequence = torch.searchsorted(batch.cu_seqlens, index, right=True) - 1
    sums = torch.zeros(batch.sequences, 6, dtype=torch.float64, device=hidden.device)
    mlm = torch.stack([losses.double(), (predicted == labels).double(), torch.ones_like(losses).double()], 1)
    sums[:, :_SOP_LOSS].index_add_(0, of_sequence, mlm)
    if batch.sop_labels is not None:
        flipped = flip_segments(batch)
        first = model.encoder(flipped, flipped.cu_seqlens[:-1])
        other = torch.where(batch.sop_labels == IGNORED, IGNORED, 1 - batch.sop_labels)
        for states, orders in ((hidden[n:], batch.sop_labels), (first, other)):
            logits = model.sop_logits(states)
            sums[:, _SOP_LOSS] += F.cross_entropy(logits, orders, ignore_index=IGNORED, reduction="none")
            sums[:, _SOP_CORRECT] += logits.argmax(-1) == orders
            sums[:, _SOP_COUNT] += orders != IGNORED
    return sums


def flip_segments(batch: Batch) -> Batch:
    """The batch with segments A and B of each sequence exchanged, without labels."""
    first, last, types = batch.cu_seqlens[:-1].long(), batch.cu_seqlens[1:].long() - 1, batch.token_type_ids
    sequence = torch.repeat_interleave(torch.arange(len(last), device=last.device), last - first + 1)
    # in the new order: [CLS], B, the separator between, A or a single segment, the last separator
    part = torch.where(types == 1, 1, 3)
    part[:-1][types.diff() == 1] = 2
    part[first], part[last] = 0, 4
    order = (5 * sequence + part).argsort(stable=True)
    has_b = types[last] == 1
    return replace(
        batch,
        input_ids=batch.input_ids[order],
        token_type_ids=(has_b[sequence] & (part[order] > 2)).long(),
        masked_index=None,
        masked_labels=None,
        sop_labels=None,
    )


def scores_of(sums: np.ndarray, documents: np.ndarray) -> dict[str, float]:
    """Scores from the sums [R, 6] of instances and their documents' keys [R]: MLM and, where documents have
    an order, SOP loss and accuracy, each with the ends of its interval (`mlm_loss_low`, ...); and the numbers
    of documents, masked tokens and pairs, which are scored in both orders.
    """
    totals = sums.sum(0)
    return _ratios(sums, documents, _MLM | _SOP, least=0) | {
        "documents": float(len(np.unique(documents))),
        "masked_tokens": float(totals[_MLM_COUNT]),
        "pairs": float(totals[_SOP_COUNT] // 2),
    }


def changes_of(before: np.ndarray, after: np.ndarray, documents: np.ndarray) -> dict[str, float]:
    """By how much MLM loss and accuracy and SOP accuracy changed, from the sums [R, 6] of the same instances.

    The interval is paired: what makes a document hard before and after cancels out.
    """
    differences = after - before
    counts = [_MLM_COUNT, _SOP_COUNT]
    differences[:, counts] = after[:, counts]
    shown = _MLM | {"sop_accuracy": _SOP["sop_accuracy"]}
    changes = {f"{name}_change": columns for name, columns in shown.items()}
    return _ratios(differences, documents, changes, least=-np.inf)


def outcomes_of(sums: np.ndarray, documents: np.ndarray) -> str:
    """The masked tokens of instances, from their sums [R, 6]: an array [1, R, 3] as text (see
    `albert.evaluation.pack`): those predicted, their number, and the number of the document.
    """
    counted = sums[:, _MLM_COUNT] > 0
    _, numbers = np.unique(documents[counted], return_inverse=True)
    return pack(np.column_stack([sums[counted][:, [_MLM_CORRECT, _MLM_COUNT]], numbers])[None])


def _ratios(
    sums: np.ndarray, documents: np.ndarray, columns: Mapping[str, tuple[int, int]], *, least: float
) -> dict[str, float]:
    """The ratios of two columns of sums [R, 6], with the ends of their intervals; none where the lower is 0.

    The interval is that of a score of one seed, with documents as examples. There is none if all documents
    agree, as where none has a right answer: it would pretend certainty.
    """
    found = {}
    for name, (above, below) in columns.items():
        counted = sums[:, below] > 0
        pairs = sums[counted][:, [above, below]]
        if not len(pairs):
            continue
        found[name] = value = float(pairs[:, 0].sum() / pairs[:, 1].sum())
        # a ratio of two sums, as accuracy is
        half = estimate(linearised("accuracy", pairs[None], documents[counted]), fewest=2).half_width
        if half is not None:
            most = 1.0 if name.endswith("accuracy") else np.inf
            found |= {f"{name}_low": max(value - half, least), f"{name}_high": min(value + half, most)}
    return found


def seen_share(held_out: Instances, streams: Sequence[InstanceStream]) -> float:
    """The share of the 13-grams of held-out instances that stand in training text, in [0, 1].

    Of more than 268 million tokens of training text, as many are searched.
    """
    ngrams = _text(held_out, np.arange(len(held_out)), joined=False).ngrams(SEEN_NGRAM)[0]
    if not len(ngrams):  # nothing but special tokens
        return 0.0
    different, of_held_out = np.unique(ngrams, return_inverse=True)
    maybe = np.zeros(1 << 24, dtype=bool)  # excludes most n-grams of the training text
    maybe[different >> np.uint64(40)] = True
    is_seen = np.zeros(len(different), dtype=bool)
    searched = 0
    for instances in (part for stream in streams for part in stream.training_text()):
        hashes = _text(*instances, joined=True).ngrams(SEEN_NGRAM)[0]
        hashes = hashes[maybe[hashes >> np.uint64(40)]]
        at = np.minimum(np.searchsorted(different, hashes), len(different) - 1)
        is_seen[at[different[at] == hashes]] = True
        searched += len(instances[0].input_ids)
        if searched > _MOST_SEARCHED:
            break
    return float(is_seen[of_held_out].mean())


def _text(instances: Instances, rows: np.ndarray, *, joined: bool) -> Letters:
    """The tokens of rows in the order of the text, without special ones; `joined`: whole documents."""
    begin, end = instances.offsets[rows], instances.offsets[rows + 1]
    b_start = instances.segment_b_start[rows].astype(np.int64)
    has_b, swapped = b_start > 0, instances.sop_labels[rows] == 1
    a = np.where(has_b, b_start - 2, end - begin - 2)
    b = np.where(has_b, end - begin - b_start - 1, 0)
    starts = np.stack([begin + 1, begin + b_start], axis=1)
    lengths = np.stack([a, b], axis=1)
    starts, lengths = (np.where(swapped[:, None], x[:, ::-1], x) for x in (starts, lengths))
    ids = instances.input_ids[take_ranges(starts.ravel(), lengths.ravel())]
    is_first = np.ones(len(rows), dtype=bool)
    if joined:
        is_first[1:] = np.diff(instances.doc_keys[rows]) != 0
    first = np.cumulative_sum(a + b, include_initial=True)
    return Letters.of(ids.astype(np.uint32) + 1, np.append(first[:-1][is_first], first[-1]))
