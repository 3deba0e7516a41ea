"""The cost of a model on this machine: parameters, operations, bytes and latency."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from albert.checkpoints import load_start
from albert.evaluation import Cost, Latency
from albert.finetuning.encoding import Encoded
from albert.finetuning.training import Candidate
from albert.model import encoder_operations
from albert.runtime import default_device, describe_default_device

_BATCH_SIZES = (1, 32)
_WARM_UP, _REPEATS = 2, 20


def measure_cost(candidate: Candidate) -> Cost:
    """Measure the model with the task's head on examples of the reported split, in their order.

    Latency covers packing and the forward pass in fp32, but not tokenization.
    """
    start = load_start(candidate.path)
    device = default_device()
    model = candidate.learner.model(start.encoder).to(device).eval()
    encoded = candidate.encoded.get("test", candidate.encoded["dev"])
    length = float(np.diff(encoded.offsets).mean())
    return Cost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=encoder_operations(start.encoder.config, length) * length,
        sequence_length=length,
        checkpoint_bytes=sum(path.stat().st_size for path in start.source.files),
        latency=tuple(_latency(model, encoded, size, device) for size in _BATCH_SIZES),
        device=describe_default_device(),
    )


@torch.no_grad()
def _latency(model: nn.Module, encoded: Encoded, batch_size: int, device: torch.device) -> Latency:
    rows = np.arange(len(encoded))
    times = []
    for number in range(_WARM_UP + _REPEATS):
        examples = rows.take(range(number * batch_size, (number + 1) * batch_size), mode="wrap")
        began = time.perf_counter()
        model(encoded.choose(examples).batch.to(device)).cpu()  # .cpu() waits for the device
        times.append(1000 * (time.perf_counter() - began))
    p50, p95 = np.quantile(times[_WARM_UP:], [0.5, 0.95])
    return Latency(batch_size, float(p50), float(p95), _REPEATS)
