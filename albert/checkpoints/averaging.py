"""The mean of checkpoints of one architecture: a remedy for forgetting, and for the last steps' noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from albert.checkpoints.loading import LoadedCheckpoint, read_checkpoint
from albert.checkpoints.saving import check_new, save_new
from data.errors import InputError
from data.tokenization import load_tokenizer, vocabulary_of


def average(sources: Sequence[Path | str], target: Path, *, weight: float | None = None) -> None:
    """Write the mean of the parameters of `sources` to the new folder `target`, with the first's vocabulary.

    All count alike (Izmailov et al. 2018), unless `weight` in [0, 1] is the first's share, of which the
    others divide the rest (Wortsman et al. 2022). Raises InputError unless the checkpoints have the same
    configuration, vocabulary and heads.
    """
    if len(sources) < 2:
        raise InputError("give two checkpoints or more to average, and then the folder to write")
    if weight is not None and not 0 <= weight <= 1:
        raise InputError(f"weight={weight:g}: the first checkpoint's share lies between 0 and 1")
    check_new(target)
    checkpoints = [read_checkpoint(source) for source in sources]
    for other in checkpoints[1:]:
        _check_alike(checkpoints[0], other)
    rest = len(sources) - 1
    shares = [1 / (rest + 1)] * (rest + 1) if weight is None else [weight, *[(1 - weight) / rest] * rest]
    models = [checkpoint.build() for checkpoint in checkpoints]
    with torch.no_grad():
        for parts in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([share * part.double() for share, part in zip(shares, parts, strict=True)])
            parts[0].copy_(mean.sum(0))
    save_new(models[0], target, load_tokenizer(checkpoints[0].source.vocabulary), made_from=sources)


def _check_alike(first: LoadedCheckpoint, other: LoadedCheckpoint) -> None:
    both = f"{first.source.weights} and {other.source.weights}"
    if first.config != other.config:
        raise InputError(f"{both} have other configurations: jixu checkpoint diff names what differs")
    if set(first.parts) != set(other.parts):
        raise InputError(f"{both} do not have the same heads: their mean would hold random weights")
    if vocabulary_of(first.source.vocabulary) != vocabulary_of(other.source.vocabulary):
        raise InputError(f"{both} have other vocabularies: a row of one is another word in the other")
