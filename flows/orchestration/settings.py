"""From a flow's parameters to the settings of the work. Knows no Prefect."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from data.catalog import (
    Condition,
    Version,
    newest_checkpoint,
    parse_condition,
    read_catalog,
    require_version,
    version_shards,
)
from data.cleaning import CleaningRules, DuplicateRules, GuardRules, QualityRules
from data.errors import InputError
from data.files import sha256
from data.refresh import (
    GateRules,
    InstanceRules,
    MaskingRules,
    RefreshSettings,
    describe_changes,
    describe_standing,
    load_recipe,
    plan_refresh,
    preview,
    standing,
)
from data.sources import SourceRules, find_files
from data.tokenization import find_tokenizer, load_tokenizer
from data.workspace import Workspace, check_name

if TYPE_CHECKING:
    from albert.finetuning import FineTuneSettings
    from albert.pretraining import Corpus, PretrainSettings

# albert is imported where it is used: it takes seconds


# parameters that are part of a group of settings
_GROUPED = {
    "text_format": "reading.text_format",
    "text_field": "reading.text_field",
    "sop": "instances.sop",
    "copies": "instances.copies",
    "mask_rate": "masking.rate",
    "max_ngram": "masking.max_ngram",
    "simplify": "cleaning.simplify",
    "scrub": "cleaning.scrub",
    "min_characters": "quality.min_characters",
    "min_han_share": "quality.min_han_share",
    "blocklist": "quality.blocklist",
    "near_duplicates": "duplicates.near",
    "guard": "guard.files",
    "guard_action": "guard.action",
    "max_lost_documents": "gates.max_lost_documents",
    "max_unknown_share": "gates.max_unknown_share",
}
_GROUPS = {
    "reading": SourceRules,
    "instances": InstanceRules,
    "masking": MaskingRules,
    "cleaning": CleaningRules,
    "quality": QualityRules,
    "duplicates": DuplicateRules,
    "guard": GuardRules,
    "gates": GateRules,
}


def refresh_settings(workspace: str, recipe: str | None = None, **given: object) -> RefreshSettings:
    """The settings of refresh-corpus: a recipe's, with those given in their place. None: not given."""
    settings = load_recipe(Path(recipe)) if recipe else {}
    for name, value in given.items():
        if value is None or value == []:
            continue
        value = tuple(value) if isinstance(value, list) else value
        if name not in _GROUPED:
            settings[name] = value
            continue
        group, part = _GROUPED[name].split(".")
        if name == "near_duplicates":
            value = _likeness(value)
        settings[group] = replace(settings.get(group, _GROUPS[group]()), **{part: value})
    if "corpus" not in settings:
        raise InputError("no corpus named: pass --corpus, or a --recipe that names one")
    return RefreshSettings(workspace=Path(workspace), **settings)


def next_start(text: str | None, settings: RefreshSettings) -> tuple[Condition, str] | None:
    """When pretraining is to follow a refresh, and from which checkpoint. Raises InputError without one."""
    if text is None:
        return None
    condition, found = parse_condition(text), find_checkpoint(Workspace(settings.workspace), settings.corpus)
    if found is None:
        raise InputError(
            f"then_pretrain_if: no checkpoint of a completed pretraining on {settings.corpus} to go on from: "
            "run continued-pretraining once"
        )
    return condition, str(found)


def find_checkpoint(place: Workspace, corpus: str) -> Path | None:
    """The newest checkpoint of a completed pretraining on a corpus, if there is one."""
    if not place.catalog.is_file():
        return None
    with read_catalog(place) as db:
        found = newest_checkpoint(db, corpus)
    return place.root / found if found and (place.root / found).is_dir() else None


def _likeness(text: str | float) -> float | None:
    if text == "off":
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"near_duplicates={text!r}: a likeness from 0.6 to 1, or off") from None


@dataclass(frozen=True, slots=True)
class PretrainingPlan:
    """A pretraining run: what it trains on, and its settings."""

    workspace: Workspace
    run: str
    version: Version
    vocabulary: Path
    settings: PretrainSettings


def pretraining_plan(
    corpus: str,
    workspace: str,
    init: str,
    run: str | None = None,
    mix: Sequence[str] = (),
    then: str | None = None,
    mask_rates: Sequence[float] | None = None,
    **same: object,
) -> PretrainingPlan:
    """The settings of continued-pretraining on the corpora's current versions. The run's name says what it
    is.
    """
    from albert.pretraining import FREE_TO_CHANGE

    place = Workspace(Path(workspace))
    version, shards = _corpus_shards(place, corpus)
    start = Path(init).resolve() if Path(init).exists() else init
    free = {name.rpartition(".")[2] for name in FREE_TO_CHANGE}
    lasting = {name: value for name, value in same.items() if name not in free}
    given = [_called(start, place), list(mix), then, mask_rates, lasting]
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]
    name = Path(init).resolve().parent.name if Path(init).name.startswith("checkpoint-") else Path(init).name
    # of a Hub repository: without the revision, and without what no folder can be called
    name = re.sub(r"[^\w.-]", "-", name.removeprefix("hf:").partition("@")[0]).lstrip(".-") or "start"
    run = check_name(run or f"{corpus}-v{version.version}-{name[:32]}-{digest}", "run")
    vocabulary = find_tokenizer(version.tokenizer, place.tokenizers)
    settings = _pretrain_settings(
        run_folder=place.model(run),
        shards=shards,
        mix=tuple(_second_corpus(place, text, version) for text in mix),
        then=_second_corpus(place, then, version) if then else None,
        mask_rates=mask_rates or None,
        tokenizer_folder=_tokenizer_folder(vocabulary, place),
        init=str(start),
        held_out_share=held_out_share(version.documents),
        **same,
    )
    return PretrainingPlan(place, run, version, vocabulary, settings)


_PRETRAINING_GROUPS = {
    "optimizer": {"optimizer": "name", "reference_batch_tokens": "reference_batch_tokens"},
    "schedule": {"schedule": "name"},
    "objective": {name: name for name in ("masking", "mask_rates", "sop_weight")},
    "evaluation": {name: name for name in ("patience", "max_forgetting")},
    "growth": {name: name for name in ("share", "num_hidden_layers")},
    "running": {
        name: name
        for name in ("precision", "accumulate", "activation_checkpointing", "deterministic", "tensorboard")
    },
}


def _pretrain_settings(**flat: object) -> PretrainSettings:
    """The flow's flat parameters in the groups that the settings have."""
    from albert.pretraining import PretrainSettings

    groups = {
        group: {inner: flat.pop(name) for name, inner in names.items() if name in flat}
        for group, names in _PRETRAINING_GROUPS.items()
    }
    return PretrainSettings(**flat, **groups)


def _called(start: Path | str, place: Workspace) -> str:
    """A start from the workspace by its path there: it has that wherever the workspace is."""
    root = place.root.resolve()
    inside = isinstance(start, Path) and start.is_relative_to(root)
    return str(start.relative_to(root) if inside else start)


def _corpus_shards(place: Workspace, corpus: str) -> tuple[Version, tuple[Path, ...]]:
    """The current version of a corpus and its shards; raises InputError when one is gone."""
    with read_catalog(place) as db:
        version = require_version(db, corpus)
        shards = version_shards(db, version)
    missing = [shard.path for shard in shards if not (place.root / shard.path).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} shard(s) of {corpus} version {version.version} are gone from {place.root}, "
            f"first {missing[0]}: run jixu doctor --fix, then refresh the corpus"
        )
    return version, tuple(place.root / shard.path for shard in shards)


def _second_corpus(place: Workspace, text: str, first: Version) -> Corpus:
    """The corpus that NAME:SHARE names, made with the same vocabulary as the first."""
    from albert.pretraining import Corpus

    name, _, share = text.rpartition(":")
    try:
        part = float(share)
    except ValueError:
        raise InputError(f"{text!r}: give a corpus and its share as NAME:SHARE, e.g. general:0.2") from None
    version, shards = _corpus_shards(place, name or share)
    vocabularies = [find_tokenizer(v.tokenizer, place.tokenizers) for v in (first, version)]
    if sha256(vocabularies[0]) != sha256(vocabularies[1]):
        raise InputError(
            f"{name} was made with the vocabulary {version.tokenizer}, {first.corpus} with "
            f"{first.tokenizer}: refresh one of them with the other's tokenizer"
        )
    return Corpus(name=name, shards=shards, share=part, held_out_share=held_out_share(version.documents))


def held_out_share(documents: int) -> float:
    """2% of the documents are held out; in a small corpus more, so that about eight are."""
    return min(0.3, max(0.02, 8 / documents))


def _tokenizer_folder(vocabulary: Path, workspace: Workspace) -> Path:
    """Where a vocabulary stands with all its files: its own folder, or the workspace's for a bare file."""
    if (vocabulary.parent / "tokenizer_config.json").is_file():
        return vocabulary.parent
    return workspace.tokenizers / f"{vocabulary.stem}-{sha256(vocabulary)[:8]}"


def complete_tokenizer(plan: PretrainingPlan) -> None:
    """See to it that the run's tokenizer folder holds every file that a checkpoint takes along."""
    folder = plan.settings.tokenizer_folder
    if folder is not None and not (folder / "tokenizer_config.json").is_file():
        load_tokenizer(plan.vocabulary).save(folder)


def fine_tune_settings(
    task: str,
    dev: str,
    model: Sequence[str],
    train: str | None = None,
    test: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    sweep: Sequence[float] = (),
    max_seq_length: int = 128,
    names: Sequence[str] | None = None,
    **same: object,
) -> FineTuneSettings:
    """The settings of fine-tune."""
    from albert.finetuning import FineTuneOptimizer, FineTuneRunning, FineTuneSettings
    from albert.tasks import load_task

    return FineTuneSettings(
        task=load_task(task),
        train=Path(train) if train else None,
        dev=Path(dev),
        test=Path(test) if test else None,
        models=tuple(Path(m) for m in model),
        seeds=tuple(seeds),
        optimizer=FineTuneOptimizer(sweep=tuple(sweep)),
        running=FineTuneRunning(max_seq_length=max_seq_length),
        names=tuple(names) if names else None,
        **same,
    )


def tokenizer_sources(corpus: str | None, source: Sequence[str], workspace: str) -> list[str] | Version:
    """What train-tokenizer learns from: raw files, or the current version of a corpus."""
    if bool(corpus) == bool(source):
        raise InputError("give either --corpus or --source to learn a vocabulary from")
    if corpus:
        with read_catalog(Workspace(Path(workspace))) as db:
            return require_version(db, corpus)
    return [path for one in source for path in find_files(one)]


# parameters of refresh-corpus that are no settings of the refresh
BESIDE_REFRESH = (
    "then_pretrain_if", "then_steps", "event_if", "runner", "dask_address", "task_hours", "dry_run",
)  # fmt: skip


def preview_refresh(**parameters: object) -> str:
    """What a refresh would do, for people."""
    for name in BESIDE_REFRESH:
        parameters.pop(name)
    return describe_changes(preview(plan_refresh(refresh_settings(**parameters))))


def standing_refresh(**parameters: object) -> str | None:
    """What a person is told where a refresh has nothing to do; None where it may have."""
    for name in BESIDE_REFRESH:
        parameters.pop(name)
    result = standing(plan_refresh(refresh_settings(**parameters)))
    return describe_standing(result) if result else None
