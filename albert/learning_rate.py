"""Learning rates that fit the batch, and schedules. Needs no torch, as options import it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

OptimizerName = Literal["adamw", "lamb"]
ScheduleName = Literal["linear", "polynomial", "wsd"]

POLYNOMIAL_POWER = 2.0
# share of the steps in which "wsd" decays (Hägele et al. 2024, section 4, find 10% to 20% enough)
WSD_DECAY_SHARE = 0.2
_STRANGE_FACTOR = 8.0  # warn about a rate this many times the rule's


class _Reference(NamedTuple):
    """A learning rate and the batch it was tuned for."""

    rate: float
    batch_tokens: int
    source: str

    def scaled(self, batch_tokens: int) -> float:
        """The rate for another batch, by the square-root rule.

        Krizhevsky 2014, section 5; You et al. 2020, section 4.
        """
        return self.rate * math.sqrt(batch_tokens / self.batch_tokens)


# with 1e-3 a small ALBERT reaches the same MLM loss, but its sequence vectors collapse: fine-tuned, it stays
# at chance, while one trained with 3e-4 learns the task
_FROM_SCRATCH = _Reference(3e-4, 4096, "AdamW from random weights")
_FROM_CHECKPOINT = _Reference(5e-5, 4096, "AdamW from a checkpoint, transformers' MLM example")
_LAMB = _Reference(0.00176, 4096 * 512, "LAMB, Lan et al. 2020, section 4.1")


class LearningRate(NamedTuple):
    """The peak rate of a run, and how it was chosen."""

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
    """Choose the rate for batches of `batch_tokens`: the reference's or `given`, by the square-root rule.

    `given_for` is the batch, in tokens, that a given rate was meant for; without it the rate is not scaled.
    """
    reference = _LAMB if optimizer == "lamb" else _FROM_CHECKPOINT if from_checkpoint else _FROM_SCRATCH
    if given is not None and given_for is None:
        usual, warning = reference.scaled(batch_tokens), None
        if given > _STRANGE_FACTOR * usual:
            warning = (
                f"learning rate {given:g} is {given / usual:,.0f} times the {usual:.2g} that the square-root "
                f"rule gives for batches of {batch_tokens:,} tokens ({reference.source}: {reference.rate:g} "
                f"at {reference.batch_tokens:,}). A loss that stays high often comes from a rate meant for "
                "larger batches; --optimizer.reference-batch-tokens names those, and scales it"
            )
        return LearningRate(given, f"learning rate {given:g}, as given", warning)
    if given is not None and given_for is not None:
        reference = _Reference(given, given_for, "as given")
    rate = reference.scaled(batch_tokens)
    explanation = (
        f"learning rate {rate:.3g} = {reference.rate:g} x sqrt({batch_tokens:,} / "
        f"{reference.batch_tokens:,}) tokens a batch ({reference.source})"
    )
    return LearningRate(rate, explanation)


def learning_rate_at(schedule: ScheduleName, step: int, steps: int, warmup_steps: int) -> float:
    """Share of the peak rate at a step counted from 0: up over the warm-up, then by the schedule.

    linear      down to 0 at the end (Devlin et al. 2019)
    polynomial  (1 - progress)^2 down to 0
    wsd         at the peak, then 1 - sqrt(progress) over the last fifth (Hägele et al. 2024, section 4), or
                what the warm-up leaves of it

    >>> [round(learning_rate_at("wsd", step, 10, 2), 2) for step in (0, 1, 5, 8, 9)]
    [0.5, 1.0, 1.0, 1.0, 0.29]
    >>> [learning_rate_at("linear", step, 10, 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "wsd":
        decay = max(min(round(steps * WSD_DECAY_SHARE), steps - warmup_steps), 1)
        return 1 - math.sqrt(max(step - (steps - decay), 0) / decay)
    left = (steps - step) / max(steps - warmup_steps, 1)
    return left if schedule == "linear" else left**POLYNOMIAL_POWER
