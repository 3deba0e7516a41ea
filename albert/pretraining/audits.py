"""Audits of a run: how its data were masked, how long it waited for them, how much memory it took."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

import numpy as np
import torch

from albert.batching import Instances, InstanceStream
from data.instances import (
    LengthAudit,
    MaskAudit,
    MaskRule,
    NgramAudit,
    audit_lengths,
    audit_masks,
    audit_ngrams,
)

AUDITED_TOKENS = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Audits:
    """What a run was trained on, how long it waited for data, and its memory."""

    rule_mask_rate: float | None = None  # what the rule asks for
    masks: MaskAudit | None = None
    ngrams: NgramAudit | None = None  # of masks that are drawn anew
    by_length: tuple[LengthAudit, ...] = ()
    loader_wait_share: float | None = None  # share of the time that the trainer waited for data
    peak_memory_bytes: int | None = None


def audit_data(stream: InstanceStream, rule: MaskRule) -> Audits:
    """Audit the masks and sentence order of the first training data, drawn as in the run."""
    instances, vocabulary = _first_rows(stream), stream.info.vocabulary
    ids, offsets, word_starts = instances.input_ids, instances.offsets, instances.word_starts
    masks = instances.masks(vocabulary, rule, seed=stream.seed, epoch=0)
    positions, is_drawn = masks.positions, instances.static is None
    longest = stream.info.max_seq_length
    bounds = sorted({longest * part // 8 for part in range(1, 9)})
    return Audits(
        rule_mask_rate=rule.rate,
        masks=audit_masks(ids, word_starts, positions, vocabulary),
        ngrams=audit_ngrams(word_starts, masks, rule) if is_drawn else None,
        by_length=tuple(audit_lengths(ids, offsets, instances.sop_labels, positions, vocabulary, bounds)),
    )


def _first_rows(stream: InstanceStream) -> Instances:
    """The instances of the first training batches, AUDITED_TOKENS of them."""
    plan = stream.plan()
    first = next(plan)
    rows, tokens = [first.rows], first.tokens
    while tokens < AUDITED_TOKENS and (planned := next(plan)).instances is first.instances:
        rows.append(planned.rows)
        tokens += planned.tokens
    return first.instances.take(np.concatenate(rows))


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes of the GPU if there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
