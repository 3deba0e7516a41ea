"""Losses and accuracies on documents that are never trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch

from albert.batching import InstanceStream
from albert.model import PretrainingModel, PretrainingOutput
from albert.runtime import Process
from data.errors import InputError

_NAMES = ("mlm_loss", "mlm_correct", "mlm_count", "sop_loss", "sop_correct", "sop_count")


@torch.no_grad()
def evaluate(
    model: PretrainingModel,
    streams: Mapping[str, InstanceStream],
    max_tokens: int,
    process: Process,
    precision: Callable[[], AbstractContextManager],
) -> dict[str, float]:
    """Losses and accuracies on each corpus's held-out documents, always the same ones with the same masks.

    The run's own corpus is named "" in `streams` and its keys have no suffix ("held_out_mlm_loss"); the keys
    of others do ("held_out_mlm_loss@general"). Batches are divided among the processes.
    """
    model.eval()
    result: dict[str, float] = {}
    for name, stream in streams.items():
        totals = torch.zeros(len(_NAMES), dtype=torch.float64, device=process.device)
        for number, batch in enumerate(stream.held_out_batches(max_tokens)):
            if number % process.world_size != process.rank:
                continue
            with precision():
                output = model(batch.to(process.device))
            add_output(totals, output)
        result |= _means(dict(zip(_NAMES, process.sum(totals).tolist(), strict=True)), name)
    model.train()
    return result


@torch.no_grad()
def add_output(sums: torch.Tensor, output: PretrainingOutput) -> None:
    """Add a batch to sums [6 or more] fp64: MLM loss, correct and count, then those of sentence order."""
    sums[0] += output.mlm_loss.double() * output.mlm_count
    sums[1] += output.mlm_correct
    sums[2] += output.mlm_count
    if output.sop_loss is not None and output.sop_correct is not None and output.sop_count is not None:
        sums[3] += output.sop_loss.double() * output.sop_count
        sums[4] += output.sop_correct
        sums[5] += output.sop_count


def _means(totals: dict[str, float], corpus: str) -> dict[str, float]:
    if not totals["mlm_count"]:
        of = f" in {corpus}" if corpus else " in the corpus"
        raise InputError(f"no held-out document{of}: raise held_out_share, or give it more documents")
    suffix = f"@{corpus}" if corpus else ""
    means = {}
    for kind in ("mlm", "sop"):
        if totals[f"{kind}_count"]:
            for what, total in (("loss", f"{kind}_loss"), ("accuracy", f"{kind}_correct")):
                means[f"held_out_{kind}_{what}{suffix}"] = totals[total] / totals[f"{kind}_count"]
    return means
