"""The optimiser's step as `benchmarks.gpu` measures it: over tensors one by one, together, fused, and flat.

Whole steps, the host's part in them: what flat buffers could spare is launches. "flat" is one buffer for all
tensors of a group, over which torch's fused AdamW stands for a kernel of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from albert.model import AlbertConfig
from albert.optim import lamb
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import Case, Run, attempt
from benchmarks.optimizer_step import DECAY, RATE, FlatLamb, adamw_step

Ways = dict[str, Callable[[torch.nn.Module], Run]]
# of AdamW each parameter, gradient and moment is read, and all but the gradient written, in fp32
BYTES_A_PARAMETER = 7 * 4


def _adamw(**settings: bool) -> Callable[[torch.nn.Module], Run]:
    return lambda model: adamw_step(model, **settings)


# "jixu" is how it trains
WAYS: dict[str, Ways] = {
    "AdamW": {
        "jixu": _adamw(flat=False, fused=True),
        "foreach": _adamw(flat=False, foreach=True),
        "flat, fused": _adamw(flat=True, fused=True),
        "flat, foreach": _adamw(flat=True, foreach=True),
    },
    "LAMB": {
        "jixu": lambda model: lamb(model, RATE, DECAY).step,
        "flat": lambda model: FlatLamb(model).step,
    },
}


def optimizer_cases(scale: Scale) -> Iterator[Case]:
    for name in ("tiny",) if scale.device == "cpu" else ("base", "large", "bert-large"):
        config = AlbertConfig.preset(name, vocab_size=scale.vocabulary)
        size = BYTES_A_PARAMETER * parameters(config)
        for optimizer, ways in WAYS.items():
            yield Case(
                f"optimizer {optimizer} {name}",
                lambda c=config, w=ways: {way: attempt(_prepared, scale, c, make) for way, make in w.items()},
                bytes=size,
            )


def parameters(config: AlbertConfig) -> int:
    """Count the parameters of a pretraining model."""
    from albert.model import PretrainingModel

    with torch.device("meta"):
        return sum(p.numel() for p in PretrainingModel(config).parameters())


def _prepared(scale: Scale, config: AlbertConfig, make: Callable[[torch.nn.Module], Run]) -> Run:
    """Make an optimiser step for a new model with gradients."""
    from albert.model import PretrainingModel

    with torch.device(scale.device):
        model = PretrainingModel(config)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 0.01
    return make(model)
