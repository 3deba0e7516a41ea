"""Optimisers: AdamW, and LAMB for large batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from albert.learning_rate import OptimizerName


def adamw(model: nn.Module, learning_rate: float, weight_decay: float = 0.01) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) with the betas and epsilon of Liu et al. 2019, section 3.1.

    Biases and LayerNorm are not decayed (Devlin et al. 2019, appendix A.2).
    """
    groups = _groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True)


def lamb(model: nn.Module, learning_rate: float, weight_decay: float = 0.01) -> Lamb:
    """LAMB; neither decay nor trust ratio for biases and LayerNorm (Lan et al. 2020's own code)."""
    matrices, vectors = _groups(model, weight_decay)
    groups = [{**matrices, "adapt": True}, {**vectors, "adapt": False}]
    fused = [p for name, p in model.named_parameters() if name.endswith("query_key_value.weight")]
    return Lamb(groups, learning_rate, frozenset(fused))


def make_optimizer(
    name: OptimizerName, model: nn.Module, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The named optimiser, over all of a model's parameters."""
    return {"adamw": adamw, "lamb": lamb}[name](model, learning_rate, weight_decay)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Tables and weights, which are decayed, and biases and LayerNorm, which are not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2): Adam's update, rescaled for each tensor to the tensor's own norm.

    A group with `adapt` off gets Adam's update. All tensors of a group are updated together. Query, key and
    value, three matrices in each of the `fused` ones, have a norm of their own.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, fused: frozenset[nn.Parameter]):
        self.fused = fused
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._step_group(parameters, group)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state_of(p) for p in parameters]
        means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        steps, gradients = [s["step"] for s in states], [p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        # one count a tensor: a head that some batches leave out has taken fewer steps
        numbers = [step.item() for step in steps]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scale = torch._foreach_div(squares, [1 - beta2**number for number in numbers])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, group["eps"])
        updates = list(torch._foreach_div(means, [1 - beta1**number for number in numbers]))
        torch._foreach_div_(updates, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            pieces = [3 if p in self.fused else 1 for p in parameters]
            sizes, changes = (
                [part for tensor, count in zip(tensors, pieces, strict=True) for part in tensor.chunk(count)]
                for tensors in (parameters, updates)
            )
            ratios: Any = _trust_ratios(sizes, changes)
            torch._foreach_mul_(changes, ratios)
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _trust_ratios(parameters: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Norm of each tensor over that of its update; 1 where either is zero."""
    sizes, changes = torch.stack(torch._foreach_norm(parameters)), torch.stack(torch._foreach_norm(updates))
    ratios = torch.where((sizes > 0) & (changes > 0), sizes / changes, 1.0)
    return list(ratios.unbind())
