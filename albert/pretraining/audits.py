"""What a run did besides learning: how its data were masked, how long it waited, how much memory it took."""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch

from albert.batching import Instances, InstanceStream
from data.instances import MaskRule, audit_masks, audit_ngrams, draw_masks, sop_balance

AUDITED_TOKENS = 200_000


def audit_data(stream: InstanceStream, rule: MaskRule) -> dict[str, object]:
    """Masks and sentence order in the first training data of a run's own corpus, drawn as it drew them."""
    instances = _first_rows(stream)
    masks: dict[str, object]
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
        masks = audit_ngrams(*drawn_as, seed=stream.seed, epoch=0)
    else:
        at, inside, *_ = instances.static
        positions = inside + np.repeat(instances.offsets[:-1], np.diff(at))
        masks = {}
    longest = stream.info.max_seq_length
    bounds = sorted({longest * part // 8 for part in range(1, 9)})
    return {
        "rule_mask_rate": rule.rate,
        **audit_masks(instances.input_ids, instances.word_starts, positions, stream.info.vocabulary),
        **masks,
        "sop_balance_by_length": sop_balance(instances.lengths, instances.sop_labels, bounds),
    }


def _first_rows(stream: InstanceStream) -> Instances:
    """The instances of the first training batches, so many tokens of them."""
    rows, tokens, instances = [], 0, None
    for planned in stream.plan():
        if instances is not None and planned.instances is not instances:
            break
        instances = planned.instances
        rows.append(planned.rows)
        tokens += planned.tokens
        if tokens >= AUDITED_TOKENS:
            break
    return instances.take(np.concatenate(rows))


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
