"""Weights, gradients and the optimiser's state sharded over the processes (FSDP2; Rajbhandari et al. 2020,
stage 3), for models that fit no single device: torch's `fully_shard` on every block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from albert.model import PretrainingModel, PretrainingObjective

OptimizerState = dict[int, dict[str, Tensor]]  # by the parameter's number and the value's name


def shard(objective: PretrainingObjective, *, compress_gradients: bool) -> None:
    """Keep one shard of each parameter in this process; a block's are gathered while it computes."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if compress_gradients else None)
    encoder = objective.model.encoder
    for block in (*encoder.attentions, *encoder.feed_forwards, objective):
        fully_shard(block, mp_policy=policy)


def full(tensor: Tensor) -> Tensor:
    """The tensor, gathered from the processes if it is sharded; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def full_objective(objective: PretrainingObjective, device: torch.device) -> PretrainingObjective:
    """The objective itself, or if it is sharded a copy with full weights; every process must call this."""
    if not any(isinstance(p, DTensor) for p in objective.parameters()):
        return objective
    with torch.device("meta"):  # draws no random number
        copy = PretrainingObjective(
            PretrainingModel(objective.model.config), span_boundary=objective.boundary is not None
        )
    copy = copy.to_empty(device=device)
    for parameter, part in zip(copy.parameters(), objective.parameters(), strict=True):
        parameter.copy_(full(part.detach()))
    return copy


def full_state(optimizer: torch.optim.Optimizer) -> OptimizerState:
    """The optimiser's state for full parameters, on the CPU; every process must call this."""
    state = optimizer.state_dict()["state"]
    return {
        number: {name: full(value.detach()).cpu() for name, value in values.items()}
        for number, values in state.items()
    }


def local_shard(value: Tensor, parameter: Tensor) -> Tensor:
    """This process's shard of a value of a parameter; the value itself if the parameter is not sharded."""
    if not isinstance(parameter, DTensor) or not value.dim():
        return value
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
