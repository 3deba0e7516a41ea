"""The stages of a refresh after its plan: read, divide, find similar words, build, commit, discover words.

They are plain functions over small records, so that they run the same in a loop, in processes or as tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from data.catalog import Source, Version, add_version, open_workspace, write_catalog
from data.errors import InputError
from data.files import sync, sync_all
from data.instances import SHARD_CHARACTERS, Shard, find_objective, write_similar_words
from data.refresh.assign import (
    Assignment,
    ListingRules,
    Piece,
    assign,
    connect,
    has_order,
    interruptible,
    list_documents,
    longest_document,
    quoted,
    unstaged_sources,
)
from data.refresh.build import BuildingRules, build_shard, read_pieces, segmenter
from data.refresh.funnel import FunnelRow, funnel_rows, write_index
from data.refresh.plan import Plan, SourceFile
from data.refresh.read import ReadingRules, read_source
from data.refresh.result import RefreshResult, result_of
from data.segmentation import Segmenter, Word, discover_words, write_dictionary
from data.storage import size_and_digest
from data.tokenization import load_tokenizer


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
    listed_path: str  # every document with its fate, staged


def read(file: SourceFile, plan: Plan, *, again: bool = False) -> ReadSource:
    """Read one source, unless the current version read the same bytes in the same way. Nothing is synced.

    `again`: its text is needed all the same.
    """
    size, digest = size_and_digest(file.uri)
    workspace, settings = plan.workspace, plan.settings
    name = file.listing_name(digest, plan.recipe_hash)
    committed = workspace.documents(settings.corpus) / name
    source = Source(file.uri, size, digest, workspace.relative(committed))
    if source in plan.current_sources and committed.is_file() and not again:
        return ReadSource(source, str(committed), None)
    rules = ReadingRules(
        text_format=file.text_format,
        text_field=file.text_field,
        cleaning=settings.cleaning,
        quality=settings.quality,
        duplicates=settings.duplicates,
        guard=settings.guard,
    )
    staging = workspace.staging(settings.corpus)
    listing, staged = staging / name, staging / f"staged-{name}"
    read_source(file.uri, listing, staged, rules)
    pa.default_memory_pool().release_unused()
    return ReadSource(source, str(listing), str(staged))


def read_batch(batch: Sequence[tuple[SourceFile, Plan]]) -> list[ReadSource]:
    """Read several sources, one after the other; their listings are on disk then."""
    sources = [read(*task) for task in batch]
    sync_all([Path(source.listing) for source in sources if source.staged_path])
    return sources


def divide(plan: Plan, sources: Sequence[ReadSource]) -> Division:
    """Decide which shards stay and which are to be built. Raises InputError if no document can be used."""
    staging = plan.workspace.staging(plan.settings.corpus)
    staged = [Path(source.staged_path) if source.staged_path else None for source in sources]
    with connect(staging, plan.settings.workers) as db:
        for number in interruptible(db, lambda: _list(plan, sources, db)):
            staged[number] = Path(read(plan.files[number], plan, again=True).staged_path)
        return interruptible(db, lambda: _assign(plan, staged, db))


def _list(plan: Plan, sources: Sequence[ReadSource], db: duckdb.DuckDBPyConnection) -> list[int]:
    """Make the table `listed`; which sources are to be read again, as their text is not staged. Raises
    InputError if no document can be used.
    """
    settings = plan.settings
    rules = ListingRules(
        near_duplicates=settings.duplicates.near,
        boilerplate_documents=settings.quality.boilerplate_documents,
        max_boilerplate=settings.quality.max_boilerplate,
    )
    held = [(shard.path, plan.workspace.root / shard.documents_path) for shard in plan.current_shards]
    list_documents(db, [Path(source.listing) for source in sources], rules, held)
    if not db.execute("select count(*) from listed where stage is null").fetchall()[0][0]:
        reasons = db.execute("select reason, count(*) from listed group by reason order by reason").fetchall()
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons) or "nothing was in it"
        names = ", ".join(s if isinstance(s, str) else s.path for s in settings.source)
        first = db.execute(
            "select source_uri from listed where stage = 'read' order by position limit 1"
        ).fetchone()
        place = f"; first: {first[0]}" if first else ""
        raise InputError(f"no document of {names} can be used ({dropped}{place}): no version was made")
    return unstaged_sources(db, [number for number, source in enumerate(sources) if source.staged_path])


def _assign(plan: Plan, staged: Sequence[Path | None], db: duckdb.DuckDBPyConnection) -> Division:
    workspace = plan.workspace
    staging = workspace.staging(plan.settings.corpus)
    sop = _decide_order(plan, db)
    listed = staging / "listed.parquet"
    assignment = assign(db, plan.current_shards, workspace.root, staged, staging, SHARD_CHARACTERS)
    db.execute(f"copy (from listed order by position) to {quoted(str(listed))} (format parquet)")
    return Division(assignment, sop, str(listed))


def _decide_order(plan: Plan, db: duckdb.DuckDBPyConnection) -> bool:
    """Whether instances get sentence order. Raises InputError where it is asked for and there is none."""
    settings = plan.settings
    possible = find_objective(settings.objective).sentence_order
    if settings.instances.sop == "on":
        if not possible:
            raise InputError(f"sop=on: the objective {settings.objective} has no sentence order")
        if longest_document(db) < 2:
            raise InputError(
                "sop=on: every document is a single sentence, so there is no order to learn; "
                "pass --sop off or auto"
            )
        return True
    if settings.instances.sop == "off" or not possible:
        return False
    # decided once for a corpus and recipe: a change of mind would change every instance
    return plan.current.sop if plan.current and plan.current_shards else has_order(db)


def find_similar(plan: Plan, division: Division) -> str | None:
    """The corpus's table of similar words, or a new one if it has none and shards are to be built."""
    current = plan.current.similar_words if plan.current and plan.current_shards else None
    if current or not division.assignment.pieces:
        return current
    from data.segmentation import train_similar_words

    pieces = [Path(piece.assigned_path) for piece in division.assignment.pieces]
    words_of = segmenter(plan.settings.dictionary)
    similar = train_similar_words(
        lambda: read_pieces(pieces), words_of, load_tokenizer(plan.tokenizer_path), seed=plan.settings.seed
    )
    return plan.workspace.relative(write_similar_words(similar, plan.workspace.shards(plan.settings.corpus)))


def build(piece: Piece, plan: Plan, sop: bool, similar: str | None = None) -> Shard | None:
    """Build one shard."""
    settings = plan.settings
    rules = BuildingRules(
        tokenizer_path=str(plan.tokenizer_path),
        objective=settings.objective,
        max_seq_length=settings.max_seq_length,
        sop=sop,
        copies=settings.instances.copies,
        seed=settings.seed,
        mask_rate=settings.masking.rate,
        max_ngram=settings.masking.max_ngram,
        max_predictions=settings.masking.max_predictions,
        dictionaries=settings.dictionary,
        similar_words=str(plan.workspace.root / similar) if similar else None,
    )
    shard = build_shard(piece, rules, plan.workspace, settings.corpus)
    # a worker builds many: what one needed is not kept for the next
    pa.default_memory_pool().release_unused()
    return shard


def build_batch(
    pieces: Sequence[Piece], plan: Plan, sop: bool, similar: str | None = None
) -> list[Shard | None]:
    """Build several shards, one after the other."""
    return [build(piece, plan, sop, similar) for piece in pieces]


def _index(
    plan: Plan, version: Version, shards: Sequence[Shard], division: Division, db: duckdb.DuckDBPyConnection
) -> list[FunnelRow]:
    """Write the version's list of documents; its funnel."""
    older = plan.current.index_path if plan.current else None
    db.execute(f"create view listed as from read_parquet({quoted(division.listed_path)})")
    write_index(db, plan.workspace.root, version.index_path, version.version, shards, older)
    return funnel_rows(
        db,
        documents_with_instances=version.documents,
        characters_with_instances=sum(shard.characters for shard in shards),
    )


def commit(
    plan: Plan,
    sources: Sequence[ReadSource],
    division: Division,
    built: Sequence[Shard | None],
    similar: str | None = None,
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
        return result_of(plan, current, False, len(assignment.kept), 0, 0)
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
        similar_words=similar,
    )
    with connect(workspace.staging(settings.corpus), settings.workers) as db:
        funnel = interruptible(db, lambda: _index(plan, version, shards, division, db))
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
    return result_of(plan, version, True, len(assignment.kept), changed, assignment.removed_documents, funnel)


def corpus_words(workspace: Path, corpus: str, *, dictionaries: Sequence[str] = (), limit: int) -> list[Word]:
    """New words of the current version of a corpus."""
    with open_workspace(workspace) as statistics:
        texts = statistics.texts(corpus)
        return discover_words(texts, segmenter=Segmenter([Path(path) for path in dictionaries]), limit=limit)


def discover(plan: Plan, result: RefreshResult) -> list[Word]:
    """New words of the version a refresh made, written to the workspace as a dictionary."""
    settings = plan.settings
    words = corpus_words(
        settings.workspace, result.corpus, dictionaries=settings.dictionary, limit=settings.discover_words
    )
    write_dictionary(words, plan.workspace.lexicon(result.corpus, result.version))
    return words
