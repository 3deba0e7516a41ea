"""The mean of checkpoints of one architecture: a remedy for forgetting, and for the last steps' noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from albert.checkpoints.loading import LoadedCheckpoint, LoadReport, read_checkpoint
from albert.checkpoints.saving import check_new, save_new
from data.errors import InputError
from data.tokenization import encode_alike

# what training alone reads, and no output depends on
_OF_TRAINING = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "initializer_range",
)  # fmt: skip


def average(sources: Sequence[Path | str], target: Path, *, weight: float | None = None) -> list[str]:
    """Write the mean of the parameters of `sources` to the new folder `target`, with the first's vocabulary
    and dropout; return notices for the user.

    All count alike (Izmailov et al. 2018), unless `weight` in [0, 1] is the first's share, of which the
    others divide the rest (Wortsman et al. 2022). What some lack, such as a SOP head, is the mean of the
    others'. Raises InputError unless the checkpoints have the same configuration and vocabulary, and one an
    MLM head.
    """
    if len(sources) < 2:
        raise InputError("give two checkpoints or more to average, and then the folder to write")
    if weight is not None and not 0 <= weight <= 1:
        raise InputError(f"weight={weight:g}: the first checkpoint's share lies between 0 and 1")
    check_new(target)
    checkpoints = [read_checkpoint(source) for source in sources]
    for other in checkpoints[1:]:
        _check_alike(checkpoints[0], other)
        other.check()
    report = _joint_report(checkpoints)
    rest = len(sources) - 1
    shares = [1 / (rest + 1)] * (rest + 1) if weight is None else [weight, *[(1 - weight) / rest] * rest]
    torch.manual_seed(0)  # for a head that all lack
    model = checkpoints[0].build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in report.new:
                parameter.copy_(_mean(name, checkpoints, shares))
    save_new(model, target, checkpoints[0].tokenizer(), made_from=sources)
    return report.notices()


def _joint_report(checkpoints: Sequence[LoadedCheckpoint]) -> LoadReport:
    """What no checkpoint has, and what is not used of any. Raises InputError if none has an MLM head."""
    first = checkpoints[0].report
    new = tuple(name for name in first.new if all(name not in one.parts for one in checkpoints))
    unused = {name for one in checkpoints for name in one.report.unused}
    joint = replace(first, new=new, unused=tuple(sorted(unused)))
    if joint.lacks("mlm."):
        raise InputError("none of the checkpoints has an MLM head: their mean's would be random weights")
    return joint


def _mean(name: str, checkpoints: Sequence[LoadedCheckpoint], shares: Sequence[float]) -> Tensor:
    """The mean of a parameter over the checkpoints that hold it."""
    held = [(share, one) for share, one in zip(shares, checkpoints, strict=True) if name in one.parts]
    # if their shares are 0, they count alike
    weights = [share for share, _ in held] if any(share for share, _ in held) else [1.0] * len(held)
    values = [weight * one.value(name).double() for weight, (_, one) in zip(weights, held, strict=True)]
    return torch.stack(values).sum(0) / sum(weights)


def _check_alike(first: LoadedCheckpoint, other: LoadedCheckpoint) -> None:
    both = f"{first.source.weights} and {other.source.weights}"
    alike = {name: getattr(first.config, name) for name in _OF_TRAINING}
    if first.config != replace(other.config, **alike):
        raise InputError(f"{both} have other configurations: jixu checkpoint diff names what differs")
    if not encode_alike(first.source.vocabulary, other.source.vocabulary):
        raise InputError(f"{both} have other vocabularies, or read case, accents or terms differently")
