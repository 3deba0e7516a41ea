"""The start of a run, checked before any work: its model, and the streams of its corpora."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic_core import to_jsonable_python

from albert.batching import InstanceStream, Phase
from albert.checkpoints import LoadReport, find_source, names_checkpoint, new_model
from albert.model import PretrainingModel, grow, initialize
from albert.pretraining.result import forget_failure
from albert.pretraining.settings import (
    FREE_TO_CHANGE,
    RESULT_FILE,
    SETTINGS_FILE,
    PretrainSettings,
    read_settings,
    write_settings,
)
from albert.pretraining.state import BEGIN_ANEW, list_checkpoints, remove_old_checkpoints, remove_unfinished
from albert.pretraining.tracking import check_tracker
from albert.runtime import Process
from data.errors import ConfigError, InputError
from data.tokenization import encode_alike, find_tokenizer

BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # of a step, by device; fewer leave a GPU waiting for the host


class Start(NamedTuple):
    """The model and the data of a run."""

    model: PretrainingModel
    report: LoadReport | None  # of the checkpoint; None for random weights
    streams: dict[str, InstanceStream]  # by corpus, the run's own first, under ""


def check_start(settings: PretrainSettings) -> Start:
    """The model and the data of a run. Raises ConfigError or InputError if they cannot work together."""
    check_tracker(settings)
    streams = _open_streams(settings)
    vocab_size = max(stream.info.vocab_size for stream in streams.values())
    model, report = build_model(settings, vocab_size)
    if report is not None and settings.init_weights == "corpus":
        raise ConfigError(f"init_weights=corpus is for a preset's name: {settings.init} has weights already")
    if report is not None and settings.tokenizer_folder is not None:
        _check_same_vocabulary(settings.init, settings.tokenizer_folder)
    for name, stream in streams.items():
        _check_fits(model, stream, name, settings.init)
    return Start(model, report, streams)


def build_model(settings: PretrainSettings, vocab_size: int) -> tuple[PretrainingModel, LoadReport | None]:
    """Build the model that a run starts from, always the same, and report on its checkpoint."""
    model, report = new_model(settings.init, vocab_size, seed=settings.seed)
    grown = grow(model, share=settings.growth.share, num_hidden_layers=settings.growth.num_hidden_layers)
    if report is None and grown is not model:  # random weights: copies would make all layers equal
        torch.manual_seed(settings.seed)
        initialize(grown, grown.config.initializer_range)
    return grown, report


def phases(settings: PretrainSettings) -> list[Phase]:
    """The shares of the run's own corpus and the others: in one phase, or in two with `then`."""
    mixed = tuple(corpus.share for corpus in settings.mix)
    own = 1 - sum(mixed)
    if settings.then is None:
        return [Phase(settings.steps, (own, *mixed))]
    switch = settings.steps - max(round(settings.steps * settings.then.share), 1)
    return [Phase(switch, (own, *mixed, 0.0)), Phase(settings.steps, (0.0, *mixed, own))]


def _open_streams(settings: PretrainSettings) -> dict[str, InstanceStream]:
    accumulate = settings.running.accumulate or 1
    batch_tokens = settings.batch_tokens or BATCH_TOKENS["cpu"]
    if batch_tokens // accumulate < 128:
        raise ConfigError(
            f"batch_tokens={batch_tokens} in {accumulate} parts leaves fewer than 128 tokens a part"
        )
    corpora = [("", settings.shards, settings.held_out_share)]
    corpora += [(corpus.name, corpus.shards, corpus.held_out_share) for corpus in settings.others]
    # a document held out of one corpus may be in another too
    never_trained = max(settings.never_trained_share, *(share for *_, share in corpora))
    streams = {
        name: InstanceStream(
            shards,
            batch_tokens=batch_tokens // accumulate,
            seed=settings.seed,
            held_out_share=share,
            never_trained_share=never_trained,
            masking=settings.objective.masking,
        )
        for name, shards, share in corpora
    }
    if len(streams) < len(corpora):
        named = ", ".join(corpus.name for corpus in settings.others)
        raise ConfigError(f"a corpus is named twice in mix and then: {named}")
    return streams


def _check_fits(model: PretrainingModel, stream: InstanceStream, name: str, init: str) -> None:
    config, info = model.config, stream.info
    corpus = f"the corpus {name}" if name else "the corpus"
    if info.max_seq_length > config.max_position_embeddings:
        raise ConfigError(
            f"{corpus} has sequences of up to {info.max_seq_length} tokens, the model {init} has "
            f"{config.max_position_embeddings} positions: refresh the corpus with "
            f"--max-seq-length {config.max_position_embeddings} or less"
        )
    if info.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{corpus} was made with a vocabulary of {info.vocab_size:,} entries, the model {init} has "
            f"{config.vocab_size:,}: refresh the corpus with the checkpoint's own tokenizer"
        )


def _check_same_vocabulary(init: str, tokenizer_folder: Path) -> None:
    """Raise ConfigError if the checkpoint has another vocabulary than the corpus; InputError if none."""
    theirs = find_source(init).vocabulary
    if not tokenizer_folder.is_dir():
        return  # a plan's: it is written before the training, which asks again
    ours = find_tokenizer(str(tokenizer_folder))
    if not encode_alike(theirs, ours):
        raise ConfigError(
            f"the corpus was made with {ours}, which is not the vocabulary of {init} ({theirs.name}): "
            "refresh the corpus with the checkpoint's own tokenizer, its entries, case, accents and terms"
        )


def settled(settings: PretrainSettings, process: Process) -> PretrainSettings:
    """Fix the size and parts of a step, those that the run was started with, else the device's and one for
    each process; and the weights to start from.

    When torchrun restarts lost processes, the run resumes even with resume="never". Raises ConfigError for
    more processes than parts.
    """
    if process.is_restarted:
        settings = replace(settings, resume="auto")
    accumulate, batch_tokens = settings.running.accumulate, settings.batch_tokens
    if settings.resume == "auto" and list_checkpoints(settings.run_folder):
        with suppress(InputError):  # they are missing or damaged: `check_same_run` says so
            before = read_settings(settings.run_folder)
            accumulate = accumulate or before.running.accumulate
            batch_tokens = batch_tokens or before.batch_tokens
    accumulate, world_size = accumulate or process.world_size, process.world_size
    if accumulate < world_size:
        raise ConfigError(
            f"a step of {accumulate} parts cannot be shared out to {world_size} processes: begin the run "
            f"with --running.accumulate {world_size} or more, or use fewer processes"
        )
    batch_tokens = batch_tokens or BATCH_TOKENS[process.device.type]
    running = replace(settings.running, accumulate=accumulate)
    weights = find_source(settings.init).sha256 if names_checkpoint(settings.init) else None
    return replace(settings, batch_tokens=batch_tokens, running=running, init_sha256=weights)


def check_same_run(settings: PretrainSettings) -> None:
    """Raise ConfigError, naming what differs, if the run would resume under other settings, or if it starts
    from a checkpoint that it would remove; InputError if its own settings cannot be read.
    """
    folder, start = settings.run_folder, Path(settings.init)
    if start.exists() and any(start.resolve().is_relative_to(p.resolve()) for p in list_checkpoints(folder)):
        raise ConfigError(f"this run would remove {start}, which it starts from: give it another --run name")
    if settings.resume == "never" or not (folder / SETTINGS_FILE).is_file() or not list_checkpoints(folder):
        return
    begun = read_settings(folder)
    before, now = _by_name(begun), _by_name(settings)
    corpora, weights = ("shards", "mix", "then"), "init_sha256"
    changed = [
        f"{name} {before[name]!r} -> {now[name]!r}"
        for name in now
        if name not in (*FREE_TO_CHANGE, *corpora, weights) and before[name] != now[name]
    ]
    if any(before[name] != now[name] for name in corpora):
        changed.append("the corpora or their versions")
    if before[weights] not in (now[weights], None):  # None: begun before they were recorded
        changed.append("the weights at --init")
    if changed:
        longer = "; to train for longer, begin another with its last checkpoint as --init"
        advice = BEGIN_ANEW + (longer if settings.steps > begun.steps else "")
        raise ConfigError(f"{folder} was begun with other settings ({'; '.join(changed)}): {advice}")


def prepare_folder(settings: PretrainSettings) -> None:
    """Store the run's settings in its folder; with resume="never" remove what the run had."""
    folder = settings.run_folder
    forget_failure(folder)
    remove_unfinished(folder)
    if settings.resume == "never":
        (folder / RESULT_FILE).unlink(missing_ok=True)
        remove_old_checkpoints(folder, step=0, keep=0)
    # torchrun, which is given this file, resumes the run
    write_settings(replace(settings, resume="auto"), folder / SETTINGS_FILE)


def _by_name(settings: PretrainSettings) -> dict[str, object]:
    """Settings by dotted name, with paths relative to their workspace if they are inside it.

    So a workspace that was moved, or is named in another way, has the same settings. A run's folder is
    models/RUN of its workspace.
    """
    workspace = settings.run_folder.absolute().parents[1]

    def relative(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(relative, value))
        if not isinstance(value, Path):
            return value
        path = value.absolute()
        return path.relative_to(workspace) if path.is_relative_to(workspace) else path

    if (init := Path(settings.init)).is_absolute():
        settings = replace(settings, init=str(relative(init)))
    content = asdict(settings, dict_factory=lambda fields: {name: relative(value) for name, value in fields})
    by_name: dict[str, object] = {}
    for name, value in to_jsonable_python(content).items():
        group = value.items() if isinstance(value, dict) and name != "then" else ()
        by_name |= {f"{name}.{option}": v for option, v in group} or {name: value}
    return by_name
