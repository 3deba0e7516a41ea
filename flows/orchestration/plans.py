"""The plan of every job: what its options mean in its workspace, or what is wrong with them.

Knows no Prefect: a command plans, and refuses or answers, before Prefect is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pydantic_core import to_jsonable_python

# these load torch, which takes seconds, at the first use of a name that needs it
from albert import checkpoints, finetuning, model, pretraining, tasks
from albert.finetuning import FineTuneRunning, FineTuneSettings, TuningOptions
from albert.pretraining import SETTINGS_FILE, Corpus, PretrainSettings, TrainingOptions
from data.catalog import (
    Condition,
    Drift,
    Version,
    never_trained_share,
    newest_checkpoint,
    parse_condition,
    read_catalog,
    require_version,
    version_of_unfinished,
    version_shards,
)
from data.cleaning import CleaningRules, make_guard
from data.errors import InputError
from data.options import values_of
from data.refresh import (
    Plan,
    RefreshResult,
    describe_changes,
    describe_result,
    plan_refresh,
    preview,
    unchanged_version,
)
from data.sources import find_files
from data.tokenization import (
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    encode_alike,
    find_tokenizer,
    load_tokenizer,
    tokenizer_digest,
)
from data.workspace import Workspace, check_name
from flows.orchestration.dask import check_cluster
from flows.orchestration.settings import (
    CorporaOptions,
    EndToEndOptions,
    ExperimentOptions,
    FineTuneJobRunning,
    FineTuneOptions,
    PretrainingOptions,
    RefreshOptions,
    TokenizerOptions,
    demo_options,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A job that has nothing to do: what a person reads, and its outcome."""

    text: str
    outcome: object


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """What a refresh did."""

    result: RefreshResult
    drift: Drift | None = None  # None: no new documents, or no older ones
    pretraining: pretraining.PretrainResult | None = None

    @property
    def status(self) -> str | None:
        """How the pretraining ended, if one followed."""
        return self.pretraining.status if self.pretraining else None


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """A refresh, and what may follow it."""

    refresh: Plan
    event_if: Condition
    pretrain_if: Condition | None


def plan_refreshing(options: RefreshOptions) -> RefreshPlan | Answer:
    """Plan a refresh; answer if nothing changed, or for a dry run."""
    settings, drift = options.settings(), options.drift
    event_if = parse_condition(drift.event_if)
    pretrain_if = None if drift.pretrain_if is None else parse_condition(drift.pretrain_if)
    plan = plan_refresh(settings)
    if options.running.dask_address:
        check_cluster(options.running.dask_address, plan)
    if options.dry_run:
        changes = preview(plan)
        return Answer(describe_changes(changes), changes)
    # a first version has nothing to drift from
    if pretrain_if and plan.current and find_checkpoint(plan.workspace, settings.corpus) is None:
        raise InputError(
            f"drift.pretrain_if: no checkpoint of a completed pretraining on {settings.corpus} to start "
            "from: run continued-pretraining once"
        )
    if result := unchanged_version(plan):
        return Answer("\n".join(describe_result(result)), RefreshOutcome(result))
    return RefreshPlan(plan, event_if, pretrain_if)


def find_checkpoint(place: Workspace, corpus: str) -> Path | None:
    """The newest checkpoint of a completed pretraining on a corpus, if there is one."""
    with read_catalog(place) as db:
        path = newest_checkpoint(db, corpus)
    return place.root / path if path and (place.root / path).is_dir() else None


@dataclass(frozen=True, slots=True)
class PretrainingPlan:
    """A pretraining run: what it trains on, and its settings."""

    workspace: Workspace
    run: str
    version: Version
    newest: int  # version of its corpus
    vocabulary: Path
    settings: PretrainSettings


def plan_pretraining(options: PretrainingOptions) -> PretrainingPlan:
    """Plan a run on the corpora's current versions, or going on, and check what it starts from or resumes."""
    from albert.runtime import Process, default_device

    plan = pretraining_plan(options)
    # again when it has its device, for which it may wait for hours
    process = Process(world_size=options.processes, device=default_device())
    settings = pretraining.settled(plan.settings, process)
    pretraining.check_start(settings)
    pretraining.check_same_run(settings)
    return plan


def pretraining_plan(options: PretrainingOptions) -> PretrainingPlan:
    """Make the plan of a run on the current versions of its corpora; its name by default tells its settings.

    A run that began on older versions goes on with those while it is unfinished or has no report.
    """
    place = options.place
    settled = _settled_name(options, place)
    with read_catalog(place) as db:
        newest = require_version(db, options.corpus).version
        never_trained = never_trained_share(db)
        # of a run on each version; a corpus with a long name is cut, as a run's has 64 letters at most
        ends = [f"-v{n}-{settled}" for n in range(1, newest + 1)]
        runs = [options.run or f"{options.corpus[: 64 - len(end)]}{end}" for end in ends]
        unfinished = (
            None if options.resume == "never" else version_of_unfinished(db, place, options.corpus, runs)
        )
    version, shards = _corpus_shards(place, options.corpus, unfinished)
    run = check_name(runs[version.version - 1], "run")
    begun = None
    if options.resume == "auto" and (place.model(run) / SETTINGS_FILE).is_file():
        begun = pretraining.read_settings(place.model(run))
        # what other corpora hold out since is no change of a run that was begun before
        never_trained = begun.never_trained_share
    kept = begun.others if begun and unfinished else ()
    vocabulary = find_tokenizer(version.tokenizer, place.tokenizers)
    start = Path(options.init)
    settings = PretrainSettings(
        **values_of(options, TrainingOptions),
        run_folder=place.model(run),
        shards=shards,
        mix=tuple(_second_corpus(place, text, version, kept) for text in options.mix),
        then=_second_corpus(place, options.then, version, kept) if options.then else None,
        tokenizer_folder=tokenizer_folder(vocabulary, place),
        init=str(start.resolve()) if start.exists() else options.init,
        held_out_share=version.held_out_share,
        never_trained_share=never_trained,
    )
    return PretrainingPlan(place, run, version, newest, vocabulary, settings)


def _settled_name(options: PretrainingOptions, place: Workspace) -> str:
    """Name a run by its start and a digest of all that changes the weights except the corpus's version."""
    start = Path(options.init)
    lasting = to_jsonable_python(options)
    for name in ("workspace", "run", "processes", "init"):
        del lasting[name]
    for name in pretraining.FREE_TO_CHANGE:
        group, _, key = name.rpartition(".")
        (lasting[group] if group else lasting).pop(key, None)
    # a start in the workspace by its path there: a workspace may be moved
    lasting["start"] = place.relative(start.resolve()) if start.exists() else options.init
    digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]
    name = start.resolve().parent.name if start.name.startswith("checkpoint-") else start.name
    # a Hub repository without its revision, and without characters that a folder's name cannot have
    name = re.sub(r"[^\w.-]", "-", name.removeprefix("hf:").partition("@")[0]).lstrip(".-") or "start"
    return f"{name[:32]}-{digest}"


def _corpus_shards(
    place: Workspace, corpus: str, at_most: int | None = None
) -> tuple[Version, tuple[Path, ...]]:
    """Find the current or an older version of a corpus, and its shards. Raises InputError if one is gone."""
    with read_catalog(place) as db:
        version = require_version(db, corpus, at_most)
        shards = version_shards(db, version)
    missing = [shard.path for shard in shards if not (place.root / shard.path).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} shard(s) of {corpus} version {version.version} are gone from {place.root}, "
            f"first {missing[0]}: run jixu doctor --fix, then refresh the corpus; a run begun on an older "
            "version begins anew with --resume never"
        )
    return version, tuple(place.root / shard.path for shard in shards)


def _second_corpus(place: Workspace, text: str, first: Version, kept: Sequence[Corpus]) -> Corpus:
    """Find the corpus that NAME:SHARE names, as in `kept` if its shards are still there. Raises InputError
    unless it has the first one's vocabulary.
    """
    name, _, number = text.rpartition(":")
    try:
        share = float(number if name else "")
    except ValueError:
        raise InputError(f"{text!r}: give a corpus and its share as NAME:SHARE, e.g. general:0.2") from None
    if name == first.corpus:
        raise InputError(f"{text}: that is the corpus itself, which has the rest of the tokens")
    for one in kept:
        shards = tuple(place.shards(name) / shard.name for shard in one.shards)  # it may have been moved
        if one.name == name and all(shard.is_file() for shard in shards):
            return replace(one, share=share, shards=shards)
    version, shards = _corpus_shards(place, name)
    if not encode_alike(*(find_tokenizer(v.tokenizer, place.tokenizers) for v in (first, version))):
        raise InputError(
            f"{name} was made with the vocabulary {version.tokenizer}, {first.corpus} with "
            f"{first.tokenizer}: refresh one of them with the other's tokenizer"
        )
    return Corpus(name=name, shards=shards, share=share, held_out_share=version.held_out_share)


def tokenizer_folder(vocabulary: Path, workspace: Workspace) -> Path:
    """The folder of a vocabulary with all its files: its own, or the workspace's for a bare file, and for one
    beside another vocabulary or with a name of its own, which a checkpoint would not take along.
    """
    folder = vocabulary.parent
    with suppress(InputError):  # of several vocabularies
        is_taken = vocabulary.name in TOKENIZER_FILES and find_tokenizer(str(folder)) == vocabulary
        if is_taken and (folder / TOKENIZER_CONFIG).is_file():
            return folder
    return workspace.tokenizers / f"{vocabulary.stem}-{tokenizer_digest(vocabulary)[:8]}"


def complete_tokenizer(plan: PretrainingPlan) -> None:
    """Write the files that every checkpoint takes along, if the run's tokenizer folder lacks them."""
    folder = plan.settings.tokenizer_folder
    if folder is not None and not (folder / TOKENIZER_CONFIG).is_file():
        load_tokenizer(plan.vocabulary).save(folder)


@dataclass(frozen=True, slots=True)
class FineTunePlan:
    """Settings of a comparison, and the task's examples."""

    settings: FineTuneSettings
    data: tasks.TaskData


def plan_fine_tuning(options: FineTuneOptions) -> FineTunePlan:
    """Read the task, and check models and corpora."""
    settings = fine_tune_settings(options)
    data = finetuning.read_task(settings)
    finetuning.check_models(settings)
    for name in filter(None, (options.corpora.domain, options.corpora.general)):
        with read_catalog(options.place) as db:
            require_version(db, name)
    if options.run:
        folder = options.place.model(check_name(options.run, "run"))
        if (folder / SETTINGS_FILE).is_file():
            raise InputError(
                f"run {options.run!r} is a pretraining, whose report would be lost: choose another --run"
            )
    return FineTunePlan(settings.fitted(data), data)


def fine_tune_settings(options: FineTuneOptions) -> FineTuneSettings:
    """The settings of a comparison."""
    models, names = finetuning.parse_models(options.model)
    running = FineTuneRunning(**values_of(options.running, FineTuneRunning))
    return FineTuneSettings(
        **values_of(options, TuningOptions) | {"running": running},
        task=tasks.load_task(options.task),
        train=Path(options.train) if options.train else None,
        dev=Path(options.dev) if options.dev else None,
        test=Path(options.test) if options.test else None,
        models=tuple(models),
        names=tuple(names) if names else None,
        primary=options.primary,
    )


def plan_tokenizer(options: TokenizerOptions) -> list[str] | Version:
    """What a vocabulary is learnt from: raw files, each once, or the current version of a corpus."""
    check_name(options.name or options.kind, "tokenizer")
    if bool(options.corpus) == bool(options.source):
        raise InputError("give either --corpus or --source to learn a vocabulary from")
    if options.corpus:
        with read_catalog(options.place) as db:
            return require_version(db, options.corpus)
    own = options.reading.allow_loopback
    files = (find_files(source, allow_loopback=own) for source in options.source)
    return list(dict.fromkeys(chain.from_iterable(files)))


def plan_end_to_end(options: EndToEndOptions) -> EndToEndOptions:
    """The options of a whole run, a demonstration's filled in; checks the task and the start."""
    if options.demo:
        options = demo_options(options)
    missing = [f"--{name}" for name in ("domain", "task", "train") if not getattr(options, name)]
    if missing:
        raise InputError(f"{', '.join(missing)} missing: give them, or --demo for the samples")
    is_checkpoint = checkpoints.names_checkpoint(options.init)
    if not options.general and not is_checkpoint:
        what = f"--init {options.init} is no checkpoint"
        raise InputError(f"{what}: give the folder of one, or --general text to train a base model on")
    _check_texts((*options.general, *options.domain), options)
    finetuning.read_task(fine_tune_settings(judging_options(options, (options.init,))))
    ours = options.place.tokenizers
    vocabulary = find_tokenizer(options.tokenizer, ours) if options.tokenizer else None
    if not is_checkpoint:
        model.AlbertConfig.preset(options.init)
        return options
    start, _ = checkpoints.load_pretrained(options.init)
    positions = start.config.max_position_embeddings
    if options.text.max_seq_length > positions:
        raise InputError(f"{options.init} has {positions} positions: give --text.max-seq-length {positions}")
    if vocabulary and not encode_alike(checkpoints.find_source(options.init).vocabulary, vocabulary):
        raise InputError(
            f"{options.tokenizer} is not the vocabulary of {options.init}: leave --tokenizer out"
        )
    return options


def _check_texts(sources: Sequence[str], options: EndToEndOptions | ExperimentOptions) -> None:
    """Raise InputError for a source or an evaluation set that cannot be read."""
    for source in sources:
        find_files(source, allow_loopback=options.reading.allow_loopback)
    if (guard := options.guard).files:
        make_guard(guard.files, guard.ngram, CleaningRules(), guard.share)


def judging_options(options: EndToEndOptions, models: tuple[str, ...]) -> FineTuneOptions:
    """The fine-tuning that judges a whole run."""
    tuning = options.fine_tuning
    running = FineTuneJobRunning(**values_of(tuning.running), workers=options.workers)
    return FineTuneOptions(
        **values_of(tuning) | {"running": running},
        task=options.task or "",
        train=options.train,
        dev=options.dev,
        test=options.test,
        model=models,
        workspace=options.workspace,
        corpora=CorporaOptions(domain="domain", general="general" if options.general else None),
    )


def plan_experiment(options: ExperimentOptions) -> ExperimentOptions:
    """The options of an experiment, once its start, its texts and its tasks were found."""
    first, second = options.first.name, options.second.name
    corpora = ["general", first, second, f"{first}-task", f"{second}-task"]
    if len(set(corpora)) < len(corpora):
        raise InputError(
            f"first.name and second.name are {first} and {second}: give two, and not general, nor the "
            "other's with -task, which names the corpus of its task's texts"
        )
    checkpoints.load_pretrained(options.init)
    _check_texts((*options.general, *options.first.text, *options.second.text), options)
    for one in (options.first, options.second):
        check_name(f"{one.name}-task", "corpus")
        paths = {name: Path(getattr(one, name)) for name in ("train", "dev", "test")}
        for split in tasks.read_task(tasks.load_task(one.task), paths).splits.values():
            examples = len(split.examples)
            lines = sum(bool(line.strip()) for line in tasks.read_lines(split.path))
            if not examples <= lines <= 1 + examples + len(split.skipped):
                raise InputError(
                    f"{split.path} has {examples:,} examples in {lines:,} lines: the experiment draws lines, "
                    "so give it a file with an example a line, such as a TSV"
                )
    return options


PREPARE: Mapping[str, Callable[..., object]] = {
    "refresh-corpus": plan_refreshing,
    "continued-pretraining": plan_pretraining,
    "fine-tune": plan_fine_tuning,
    "train-tokenizer": plan_tokenizer,
    "end-to-end": plan_end_to_end,
    "lcqmc-experiment": plan_experiment,
}
