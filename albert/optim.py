"""Optimisers, learning rates that fit the batch, and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

OptimizerName = Literal["adamw", "lamb"]
ScheduleName = Literal["linear", "polynomial", "wsd"]
OPTIMIZERS, SCHEDULES = get_args(OptimizerName), get_args(ScheduleName)

POLYNOMIAL_POWER = 2.0
# share of the steps in which "wsd" decays (Hägele et al. 2024, section 4, find 10% to 20% enough)
WSD_DECAY_SHARE = 0.2
_STRANGE_FACTOR = 8.0  # a given rate so many times the rule's is remarked upon


@dataclass(frozen=True, slots=True)
class ReferenceRate:
    """A learning rate and the batch it was tried with."""

    rate: float
    batch_tokens: int
    source: str

    def scaled(self, batch_tokens: int) -> float:
        """The rate for another batch, by the square-root rule (Krizhevsky 2014, section 5; You et al. 2020,
        section 4).
        """
        return self.rate * math.sqrt(batch_tokens / self.batch_tokens)


# with 1e-3 a small ALBERT reaches the same MLM loss, but its sequences' vectors fall together: fine-tuned, it
# stays at chance, where one trained with 3e-4 learns the task
ADAMW_FROM_SCRATCH = ReferenceRate(3e-4, 4096, "AdamW from random weights")
ADAMW_FROM_CHECKPOINT = ReferenceRate(5e-5, 4096, "AdamW from a checkpoint, transformers' MLM example")
LAMB = ReferenceRate(0.00176, 4096 * 512, "LAMB, Lan et al. 2020, section 4.1")


def reference_rate(optimizer: OptimizerName, *, from_checkpoint: bool) -> ReferenceRate:
    """What the default rate is scaled from."""
    if optimizer == "lamb":
        return LAMB
    return ADAMW_FROM_CHECKPOINT if from_checkpoint else ADAMW_FROM_SCRATCH


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The peak rate of a run, and where it comes from."""

    rate: float
    explanation: str
    warning: str | None = None


def choose_learning_rate(
    optimizer: OptimizerName,
    batch_tokens: int,
    *,
    from_checkpoint: bool,
    given: float | None = None,
    given_for: int | None = None,
) -> LearningRate:
    """The rate for batches of `batch_tokens`: the reference's, or `given`, scaled by the square-root rule.

    `given_for` is the batch, in tokens, a given rate was meant for; without it that rate is taken as it is.
    """
    reference = reference_rate(optimizer, from_checkpoint=from_checkpoint)
    usual = reference.scaled(batch_tokens)
    if given is not None and given_for is None:
        warning = None
        if given > _STRANGE_FACTOR * usual:
            warning = (
                f"learning rate {given:g} is {given / usual:,.0f} times the {usual:.2g} that the square-root "
                f"rule gives for batches of {batch_tokens:,} tokens ({reference.source}: {reference.rate:g} "
                f"at {reference.batch_tokens:,}). A loss that stays high often comes from a rate meant for "
                "larger batches; --reference-batch-tokens names those, and scales it"
            )
        return LearningRate(given, f"learning rate {given:g}, as given", warning)
    if given is not None and given_for is not None:
        reference = ReferenceRate(given, given_for, "as given")
    rate = reference.scaled(batch_tokens)
    explanation = (
        f"learning rate {rate:.3g} = {reference.rate:g} x sqrt({batch_tokens:,} / "
        f"{reference.batch_tokens:,}) tokens a batch ({reference.source})"
    )
    return LearningRate(rate, explanation)


def adamw(model: nn.Module, learning_rate: float, weight_decay: float = 0.01) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) with the betas and epsilon of Liu et al. 2019, section 3.1; no decay
    on biases and LayerNorm (Devlin et al. 2019, appendix A.2).
    """
    groups = [
        {"params": matrices(model), "weight_decay": weight_decay},
        {"params": vectors(model), "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True)


def lamb(model: nn.Module, learning_rate: float, weight_decay: float = 0.01) -> Lamb:
    """LAMB; neither decay nor trust ratio for biases and LayerNorm (Lan et al. 2020's own code)."""
    groups = [
        {"params": matrices(model), "weight_decay": weight_decay, "adapt": True},
        {"params": vectors(model), "weight_decay": 0.0, "adapt": False},
    ]
    return Lamb(groups, learning_rate)


def make_optimizer(
    name: OptimizerName, model: nn.Module, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimiser of a name, for all of a model's parameters."""
    return {"adamw": adamw, "lamb": lamb}[name](model, learning_rate, weight_decay)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are decayed: tables and weights."""
    return [p for p in model.parameters() if p.dim() > 1]


def vectors(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not: biases and LayerNorm."""
    return [p for p in model.parameters() if p.dim() <= 1]


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2): Adam's update, rescaled for each tensor to the tensor's own norm.

    With `adapt` false in a group the update is Adam's. All tensors of a group are worked on together.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = closure() if closure else None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(parameters, group)
        return loss

    def _step_group(self, parameters: list[nn.Parameter], group: dict) -> None:
        states = [self._state_of(p) for p in parameters]
        means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        steps, gradients = [s["step"] for s in states], [p.grad for p in parameters]
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        # each its own: a head that some batches have no use for has taken fewer steps
        numbers = [step.item() for step in steps]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scale = torch._foreach_div(squares, [1 - beta2**number for number in numbers])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**number for number in numbers])
        torch._foreach_div_(updates, scale)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(updates, _trust_ratios(parameters, updates))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _trust_ratios(parameters: list[nn.Parameter], updates: list[Tensor]) -> list[Tensor]:
    """Norm of each tensor over that of its update; 1 where either is zero."""
    sizes, changes = torch.stack(torch._foreach_norm(parameters)), torch.stack(torch._foreach_norm(updates))
    ratios = torch.where((sizes > 0) & (changes > 0), sizes / changes, 1.0)
    return list(ratios.unbind())


def learning_rate_at(schedule: ScheduleName, step: int, steps: int, warmup_steps: int) -> float:
    """Share of the peak rate at a step counted from 0: up over the warm-up, then by the schedule.

    linear      down to 0 at the end (Devlin et al. 2019)
    polynomial  (1 - progress)^2 down to 0
    wsd         at the peak, then 1 - sqrt(progress) over the last fifth (Hägele et al. 2024, section 4)

    >>> [round(learning_rate_at("wsd", step, 10, 2), 2) for step in (0, 1, 5, 8, 9)]
    [0.5, 1.0, 1.0, 1.0, 0.29]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "wsd":
        decay = max(round(steps * WSD_DECAY_SHARE), 1)
        return 1 - math.sqrt(max(step - (steps - decay), 0) / decay)
    left = (steps - step) / max(steps - warmup_steps, 1)
    return left if schedule == "linear" else left**POLYNOMIAL_POWER


def linear_schedule(step: int, steps: int, warmup_steps: int) -> float:
    """`learning_rate_at` of the schedule "linear".

    >>> [linear_schedule(step, 10, 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    return learning_rate_at("linear", step, steps, warmup_steps)
