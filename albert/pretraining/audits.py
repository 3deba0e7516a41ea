"""Audits of a run: how its data were masked, how long it waited for them, how much memory it took."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from albert.batching import Instances, InstanceStream
from data.errors import ConfigError
from data.instances import MaskRule, audit_masks, audit_ngrams, draw_masks, sop_balance

AUDITED_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class SopBalance:
    """How many sentence pairs of a range of lengths in tokens are swapped."""

    length_from: int
    length_to: int
    in_order: int
    swapped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Audits:
    """What a run was trained on, how long it waited for data, and its memory."""

    rule_mask_rate: float | None = None  # what the rule asks for
    mask_rate: float | None = None  # share of the tokens
    mask_rate_by_word_length: Mapping[str, float] | None = None  # by the tokens of the word
    whole_word_coverage: float | None = None  # share of masked words that are masked whole
    ngram_histogram: Mapping[str, int] | None = None  # masked n-grams by their words
    ngram_expected_shares: Mapping[str, float] | None = None  # what the rule asks for
    sop_balance_by_length: tuple[SopBalance, ...] = ()
    loader_wait_share: float | None = None  # share of the time that the trainer waited for data
    peak_memory_bytes: int | None = None


def audit_data(stream: InstanceStream, rule: MaskRule) -> Audits:
    """Audit the masks and sentence order of the first training data, drawn as in the run."""
    instances = _first_rows(stream)
    if instances.static is None:
        drawn_as = (
            instances.input_ids,
            instances.word_starts,
            instances.offsets,
            instances.instance_ids,
            stream.info.vocabulary,
            rule,
        )
        positions = draw_masks(*drawn_as, seed=stream.seed, epoch=0).positions
        ngrams: Any = audit_ngrams(*drawn_as, seed=stream.seed, epoch=0)
    else:
        at, inside, *_ = instances.static
        positions = inside + np.repeat(instances.offsets[:-1], np.diff(at))
        ngrams = {}
    longest = stream.info.max_seq_length
    bounds = sorted({longest * part // 8 for part in range(1, 9)})
    balance = sop_balance(instances.lengths, instances.sop_labels, bounds)
    masks: Any = audit_masks(instances.input_ids, instances.word_starts, positions, stream.info.vocabulary)
    return Audits(
        rule_mask_rate=rule.rate,
        **masks,
        **ngrams,
        sop_balance_by_length=tuple(SopBalance(**bucket) for bucket in balance),
    )


def _first_rows(stream: InstanceStream) -> Instances:
    """The instances of the first training batches, AUDITED_TOKENS of them."""
    rows: list[np.ndarray] = []
    tokens, instances = 0, None
    for planned in stream.plan():
        if instances is not None and planned.instances is not instances:
            break
        instances = planned.instances
        rows.append(planned.rows)
        tokens += planned.tokens
        if tokens >= AUDITED_TOKENS:
            break
    if instances is None:
        raise ConfigError("no instance to audit: the corpus is empty")
    return instances.take(np.concatenate(rows))


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes of the GPU if there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
