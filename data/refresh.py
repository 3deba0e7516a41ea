"""A refresh: raw text -> cleaned documents -> instance shards -> a new corpus version, or none if nothing
changed.

The steps are plain functions over small records, so that they run the same in a loop, in processes or as
tasks: `plan`, then `read` for each source, `divide`, `build` for each piece, `commit`. `refresh` runs them
all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from tqdm import tqdm

from data.assignment import Assignment, Piece, assign, connect, has_order, list_documents
from data.building import BuildingRules, build_shard
from data.catalog import (
    Source,
    Version,
    add_version,
    newest_version,
    read_catalog,
    version_shards,
    version_sources,
    write_catalog,
)
from data.files import sha256, sync
from data.funnel import funnel_rows, write_index
from data.reading import READING_VERSION, ReadingRules, read_source
from data.records import InputError
from data.shards import Shard
from data.sources import TEXT_FORMATS, TextFormat, find_files
from data.tokenization import find_tokenizer, load_tokenizer
from data.workspace import Workspace, check_name, default_workspace

BUILDING_VERSION = (
    2  # of segmentation, tokenisation, instances and masks: a change of what they give raises it
)
SHARD_CHARACTERS = 2_000_000  # of text to a shard


@dataclass(frozen=True, kw_only=True)
class RefreshSettings:
    """What to refresh, from what, and how."""

    __pydantic_config__ = {"extra": "forbid"}

    corpus: str
    sources: tuple[str, ...]
    workspace: Path = field(default_factory=default_workspace)
    tokenizer: str | None = (
        None  # a vocabulary's path or name; None: the corpus's own, or the workspace's only one
    )
    objective: Literal["albert"] = "albert"
    max_seq_length: int = 128
    sop: Literal["auto", "on", "off"] = "auto"
    text_format: TextFormat = "auto"
    text_field: str | None = None
    min_characters: int = 5
    min_han_share: float = 0.3
    mask_rate: float = 0.15
    max_ngram: int = 3
    copies: int = 1
    seed: int = 0
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a refresh needs to know, checked, before it touches a text."""

    settings: RefreshSettings
    files: tuple[Path, ...]
    tokenizer_path: Path
    vocab_size: int
    recipe: dict[str, object]
    recipe_hash: str
    current: Version | None
    current_sources: tuple[Source, ...]
    current_shards: tuple[Shard, ...]  # empty when the recipe changed: all is built anew

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.settings.workspace)


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A source that is read: its listing and, unless it is unchanged, its staged text."""

    source: Source
    listing: str  # where its listing is now: staged until the commit, unless the source is unchanged
    staged_path: str | None


@dataclass(frozen=True, slots=True)
class Division:
    assignment: Assignment
    sop: bool


@dataclass(frozen=True, slots=True)
class RefreshResult:
    corpus: str
    version: int
    is_new: bool  # False: nothing changed, this version was there before
    sop: bool
    documents: int
    instances: int
    tokens: int
    new_shards: int
    kept_shards: int
    removed_documents: int


def plan(settings: RefreshSettings) -> Plan:
    """Check the settings and find the sources. Writes nothing; raises InputError for what cannot work."""
    check_name(settings.corpus, "corpus")
    _check_ranges(settings)
    files = _find_all(settings.sources)
    workspace = Workspace(settings.workspace)
    current, sources, shards, corpus_tokenizer = None, [], [], None
    if workspace.catalog.is_file():
        with read_catalog(workspace) as db:
            current = newest_version(db, settings.corpus)
            if current:
                sources, shards = version_sources(db, current), version_shards(db, current)
                corpus_tokenizer = current.tokenizer
    tokenizer_path = _find_tokenizer(settings, workspace, corpus_tokenizer)
    tokenizer = load_tokenizer(tokenizer_path)
    recipe = _recipe(settings, tokenizer_path)
    recipe_hash = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    same_recipe = current is not None and current.recipe_hash == recipe_hash
    return Plan(
        settings,
        tuple(files),
        tokenizer_path,
        tokenizer.vocab_size,
        recipe,
        recipe_hash,
        current,
        tuple(sources) if same_recipe else (),
        tuple(shards) if same_recipe else (),
    )


def _check_ranges(settings: RefreshSettings) -> None:
    ranges = [
        (
            "max_seq_length",
            settings.max_seq_length,
            16,
            512,
        ),  # 512 positions: every public Chinese model's limit
        ("min_characters", settings.min_characters, 1, 1_000_000),
        ("min_han_share", settings.min_han_share, 0, 1),
        ("mask_rate", settings.mask_rate, 0.01, 0.8),
        ("max_ngram", settings.max_ngram, 1, 10),
        ("copies", settings.copies, 1, 100),
        ("seed", settings.seed, 0, 2**31),
        ("workers", settings.workers, 1, 1024),
    ]
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise InputError(f"{name}={value}: it must be from {low} to {high}")
    for name, value, known in (
        ("sop", settings.sop, ("auto", "on", "off")),
        ("text_format", settings.text_format, TEXT_FORMATS),
        ("objective", settings.objective, ("albert",)),
    ):
        if value not in known:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(known)}")


def _find_all(sources: Sequence[str]) -> list[Path]:
    if not sources:
        raise InputError("no source given: pass --source with a file, a folder or a glob")
    files = [path for source in sources for path in find_files(source)]
    return list({path.resolve(): path for path in files}.values())  # a file named twice is read once


def _find_tokenizer(settings: RefreshSettings, workspace: Workspace, of_corpus: str | None) -> Path:
    if settings.tokenizer:
        return find_tokenizer(settings.tokenizer, workspace.tokenizers)
    if of_corpus:
        return find_tokenizer(of_corpus, workspace.tokenizers)
    trained = sorted(p.name for p in workspace.tokenizers.iterdir()) if workspace.tokenizers.is_dir() else []
    if len(trained) == 1:
        return find_tokenizer(trained[0], workspace.tokenizers)
    raise InputError(
        "no tokenizer given: pass --tokenizer with a vocab.txt or spiece.model (of the checkpoint you will "
        "start from), "
        "or train one with python -m flows.train_tokenizer"
    )


def _recipe(settings: RefreshSettings, tokenizer_path: Path) -> dict[str, object]:
    """What the shards are a function of, beside the documents."""
    asked = asdict(settings)
    for name in ("corpus", "sources", "workspace", "tokenizer", "workers"):
        del asked[name]
    versions = {"reading_version": READING_VERSION, "building_version": BUILDING_VERSION}
    return {
        **asked,
        **versions,
        "tokenizer_sha256": sha256(tokenizer_path),
        "shard_characters": SHARD_CHARACTERS,
    }


@contextmanager
def locked(workspace: Workspace, corpus: str) -> Iterator[None]:
    """One refresh of a corpus at a time; a second one is refused. Sweeps what a killed one left."""
    lock = workspace.lock(f"refresh-{corpus}")
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    except Timeout:
        raise InputError(
            f"corpus {corpus!r} is being refreshed by another process: wait for it to end"
        ) from None


def read(path: Path, plan: Plan) -> ReadSource:
    """Read one source file, unless the current version read the same bytes with the same recipe."""
    digest = sha256(path)
    workspace, corpus = plan.workspace, plan.settings.corpus
    uri = str(path)
    known = next((s for s in plan.current_sources if s.uri == uri and s.sha256 == digest), None)
    if known and (workspace.root / known.listing_path).is_file():
        return ReadSource(known, str(workspace.root / known.listing_path), None)
    settings = plan.settings
    rules = ReadingRules(
        text_format=settings.text_format,
        text_field=settings.text_field,
        min_characters=settings.min_characters,
        min_han_share=settings.min_han_share,
    )
    name = hashlib.sha256(f"{uri}\0{digest}\0{plan.recipe_hash}".encode()).hexdigest()[:16]
    listing = workspace.staging(corpus) / f"listing-{name}.parquet"
    staged = workspace.staging(corpus) / f"staged-{name}.parquet"
    read_source(path, listing, staged, rules)
    committed = workspace.relative(workspace.documents(corpus) / listing.name)
    return ReadSource(Source(uri, path.stat().st_size, digest, committed), str(listing), str(staged))


def divide(plan: Plan, sources: Sequence[ReadSource]) -> Division:
    """Decide which shards stay and which are to be built. Raises InputError if no document can be used."""
    workspace, corpus = plan.workspace, plan.settings.corpus
    staging = workspace.staging(corpus)
    listings = [Path(source.listing) for source in sources]
    with connect(staging) as db:
        list_documents(db, listings)
        if not db.execute("select count(*) from listed where stage is null").fetchall()[0][0]:
            reasons = db.execute(
                "select reason, count(*) from listed group by reason order by reason"
            ).fetchall()
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons) or "nothing was in it"
            raise InputError(
                f"no document of {', '.join(plan.settings.sources)} can be used ({dropped}): "
                "no version was made"
            )
        if plan.settings.sop != "auto":
            sop = plan.settings.sop == "on"
        else:  # decided once for a corpus and recipe: a change of mind would change every instance
            sop = plan.current.sop if plan.current and plan.current_shards else has_order(db)
        staged = [Path(source.staged_path) for source in sources if source.staged_path]
        assignment = assign(db, plan.current_shards, workspace.root, staged, staging, SHARD_CHARACTERS)
    return Division(assignment, sop)


def build(piece: Piece, plan: Plan, sop: bool) -> Shard | None:
    """Build one shard."""
    settings = plan.settings
    rules = BuildingRules(
        tokenizer_path=str(plan.tokenizer_path),
        max_seq_length=settings.max_seq_length,
        sop=sop,
        copies=settings.copies,
        seed=settings.seed,
        mask_rate=settings.mask_rate,
        max_ngram=settings.max_ngram,
    )
    return build_shard(piece, rules, plan.workspace, settings.corpus)


def commit(
    plan: Plan, sources: Sequence[ReadSource], division: Division, built: Sequence[Shard | None]
) -> RefreshResult:
    """Record the new version in one transaction; where nothing changed, the current one stands."""
    settings, workspace, assignment = plan.settings, plan.workspace, division.assignment
    replaced = {
        piece.replaces: shard for piece, shard in zip(assignment.pieces, built, strict=True) if piece.replaces
    }
    new = [
        shard for piece, shard in zip(assignment.pieces, built, strict=True) if shard and not piece.replaces
    ]
    kept = set(assignment.kept)
    order = [shard if shard in kept else replaced.get(shard.path) for shard in plan.current_shards]
    shards = [shard for shard in order if shard] + new
    current = plan.current
    if (
        current
        and plan.current_shards == tuple(shards)
        and plan.current_sources == tuple(s.source for s in sources)
    ):
        return _result(current, False, len(assignment.kept), 0, 0)
    number = current.version + 1 if current else 1
    version = Version(
        corpus=settings.corpus,
        version=number,
        recipe_hash=plan.recipe_hash,
        sop=division.sop,
        tokenizer=str(plan.tokenizer_path.resolve()),
        max_seq_length=settings.max_seq_length,
        documents=sum(shard.documents for shard in shards),
        instances=sum(shard.instances for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        index_path=workspace.relative(workspace.documents(settings.corpus))
        + f"/index-{plan.recipe_hash}-{number}.parquet",
    )
    with connect(workspace.staging(settings.corpus)) as db:
        list_documents(db, [Path(source.listing) for source in sources])
        write_index(
            db, workspace.root, version.index_path, number, shards, current.index_path if current else None
        )
        funnel = funnel_rows(
            db,
            documents_with_instances=version.documents,
            characters_with_instances=sum(shard.characters for shard in shards),
        )
    for source in sources:
        if source.staged_path:
            os.replace(source.listing, workspace.root / source.source.listing_path)
    sync(workspace.documents(settings.corpus))
    with write_catalog(workspace) as db:
        add_version(
            db,
            version,
            parent=current.version if current else None,
            recipe=plan.recipe,
            objective=settings.objective,
            vocab_size=plan.vocab_size,
            sources=[source.source for source in sources],
            shards=shards,
            funnel=funnel,
        )
    changed = len([shard for shard in built if shard])
    return _result(version, True, len(assignment.kept), changed, assignment.removed_documents)


def _result(version: Version, is_new: bool, kept: int, new: int, removed: int) -> RefreshResult:
    counts = (version.documents, version.instances, version.tokens)
    return RefreshResult(version.corpus, version.version, is_new, version.sop, *counts, new, kept, removed)


def refresh(settings: RefreshSettings) -> RefreshResult:
    """The whole refresh in this process and `settings.workers` others."""
    plan(settings)  # refuses what cannot work before anything is written
    with locked(Workspace(settings.workspace), settings.corpus), worker_pool(settings.workers) as pool:
        planned = plan(settings)  # as things stand now that no other refresh changes them
        reading = [pool.submit(read, path, planned) for path in planned.files]
        sources = [future.result() for future in tqdm(reading, "reading", unit="file", disable=None)]
        division = divide(planned, sources)
        building = [pool.submit(build, piece, planned, division.sop) for piece in division.assignment.pieces]
        shards = [future.result() for future in tqdm(building, "building", unit="shard", disable=None)]
        return commit(planned, sources, division, shards)


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start clean, whatever threads this one has; what is not begun is dropped on an error."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
