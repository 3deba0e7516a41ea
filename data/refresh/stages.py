"""The stages of a refresh after its plan: read, divide, find similar words, build, commit, discover words.

They are plain functions over small records, so that they run the same in a loop, in processes or as tasks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog import (
    FunnelRow,
    Source,
    Statistics,
    Version,
    add_version,
    has_catalog,
    never_trained_share,
    parquet,
    read_catalog,
    write_catalog,
)
from data.errors import InputError
from data.files import sync, sync_all
from data.instances import Shard, is_readable, sum_counts, write_similar_words
from data.refresh.assign import Division, assign
from data.refresh.build import Piece, build_shard, read_pieces, segmenter
from data.refresh.fates import current_index, drop_repeated, list_documents
from data.refresh.funnel import funnel_rows, order_rows, write_index
from data.refresh.plan import Plan, SourceFile, packs, sources_of
from data.refresh.read import read_sources
from data.refresh.result import RefreshResult, result_of
from data.refresh.scratch import connect, interruptible
from data.segmentation import Word, discover_words, find_similar_words, write_dictionary
from data.storage import size_and_digest
from data.tokenization import load_tokenizer
from data.workspace import Workspace

_HELD_OUT_SHARE, _MOST_HELD_OUT = 0.02, 0.3  # of the documents
# about 8 documents of a small corpus, and at least 3 if the largest share allows it
_HELD_OUT_DOCUMENTS, _FEWEST_HELD_OUT = 8, 3
_SMALL = 1000  # documents; of more, 2% are never fewer


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A source that was read now, or by the current version and is unchanged; others may share its files."""

    source: Source
    listing: Path  # staged until the commit, unless the source is unchanged
    staged_path: Path | None  # its text; None if the source is unchanged


def read_batch(files: Sequence[SourceFile], plan: Plan) -> list[ReadSource]:
    """Read several sources, one after the other; their listings are on disk when it returns."""
    sources = [source for pack in packs(files) for source in _read(pack, plan)]
    sync_all(list(dict.fromkeys(source.listing for source in sources if source.staged_path)))
    return sources


def _read(pack: Sequence[SourceFile], plan: Plan) -> list[ReadSource]:
    """Read the sources of a pack, unless the current version read the same bytes in the same way."""
    uris = [file.uri for file in pack]
    changed = list(map(_changed_at, uris))
    contents = list(map(size_and_digest, uris))
    sources = sources_of(pack, plan, contents)
    committed = plan.workspace.root / sources[0].listing_path
    if sources == [file.previous for file in pack] and is_readable(committed):
        return [ReadSource(source, committed, None) for source in sources]
    staged = _stage(pack, plan, committed.name)
    for number, before in enumerate(changed):
        if _changed_at(uris[number]) != before:  # read half written, maybe: the next refresh reads it again
            size, digest = contents[number]
            contents[number] = size, hashlib.sha256(f"{digest} until {before}".encode()).hexdigest()
    return [ReadSource(source, *staged) for source in sources_of(pack, plan, contents)]


def _changed_at(uri: str) -> int | None:
    """Return when content, name or rights of a local file were last changed, in nanoseconds."""
    with suppress(OSError):
        return os.stat(uri).st_ctime_ns
    return None


def _stage(pack: Sequence[SourceFile], plan: Plan, listing_name: str) -> tuple[Path, Path]:
    """Write the listing and the text of a pack to the staging folder; return their paths."""
    listing, staged = plan.staging / listing_name, plan.staging / f"staged-{listing_name}"
    settings = replace(plan.settings, reading=pack[0].reading)
    read_sources([file.uri for file in pack], listing, staged, settings)
    pa.default_memory_pool().release_unused()
    return listing, staged


def divide(plan: Plan, sources: Sequence[ReadSource]) -> Division:
    """Decide which shards stay and which are to be built. Raises InputError if no document can be used."""
    text_of = {source.listing: source.staged_path for source in sources}
    listings, staged, together = list(text_of), list(text_of.values()), packs(plan.files)
    with connect(plan.staging, plan.settings.workers) as db:
        for work in (partial(list_documents, db, plan, listings), partial(drop_repeated, db, plan, staged)):
            for number in interruptible(db, work):
                if staged[number] is None:  # unchanged sources, whose text is needed after all
                    first, *others = pack = together[number]
                    again, staged[number] = _stage(pack, plan, listings[number].name)
                    if not _begins_as(again, listings[number]):
                        rest = f" or one of {len(others)} files after it" if others else ""
                        raise InputError(f"{first.place}{rest} changed meanwhile: refresh again")
        return interruptible(db, partial(assign, db, plan, staged))


def _begins_as(listing: Path, earlier: Path) -> bool:
    """Whether a listing has the documents of an earlier one in the same rows; its file may have grown."""
    now, before = (pq.read_table(path, columns=["doc_id", "staged_row"]) for path in (listing, earlier))
    return now[: len(before)].equals(before)


def find_similar(plan: Plan, division: Division) -> str | None:
    """Find the corpus's table of similar words; make one if it has none and shards are to be built."""
    current = plan.current.similar_words if plan.current and not plan.anew else None
    if current or not division.pieces:
        return current
    pieces = [piece.assigned_path for piece in division.pieces]
    words_of = segmenter(plan.settings.dictionary)
    similar = find_similar_words(
        read_pieces(pieces), words_of, load_tokenizer(plan.tokenizer_path), seed=plan.settings.seed
    )
    return plan.workspace.relative(write_similar_words(similar, plan.workspace.shards(plan.settings.corpus)))


def build_batch(pieces: Sequence[Piece], plan: Plan, similar: str | None = None) -> list[Shard | None]:
    """Build several shards, one after the other; None for a piece that gives no instance."""
    similar_path = plan.workspace.root / similar if similar else None
    shards = []
    for piece in pieces:
        shards.append(build_shard(piece, plan.settings, plan.tokenizer_path, similar_path))
        # a worker builds many shards: return the memory that one needed before the next
        pa.default_memory_pool().release_unused()
    return shards


def commit(
    plan: Plan,
    sources: Sequence[ReadSource],
    division: Division,
    built: Sequence[Shard | None],
    similar: str | None = None,
) -> RefreshResult:
    """Record the new version in one transaction; if nothing changed, the current one stays."""
    settings, workspace = plan.settings, plan.workspace
    listings = {one.listing: one.source.listing_path for one in sources if one.staged_path}
    for staged, committed in listings.items():  # one that is there already was damaged
        os.replace(staged, workspace.root / committed)
    sync(workspace.documents(settings.corpus))
    shards = _arrange(plan.current_shards, division, built)
    current, kept, read = plan.current, len(division.kept), tuple(source.source for source in sources)
    if current and plan.current_shards == tuple(shards) and plan.current_sources == read:
        return result_of(plan, current, kept)
    version = _next_version(plan, division.sop, shards, similar)
    with connect(plan.staging, settings.workers) as db:
        funnel = interruptible(db, partial(_index, plan, version, shards, division, db))
    with write_catalog(workspace) as db:
        add_version(db, version, recipe=plan.recipe, sources=read, shards=shards, funnel=funnel)
    new = sum(shard is not None for shard in built)
    return result_of(plan, version, kept, new, division.removed_documents, funnel)


def _arrange(current: Sequence[Shard], division: Division, built: Sequence[Shard | None]) -> list[Shard]:
    """Order the new version's shards: kept and rewritten ones in their places, new ones at the end."""
    pairs = list(zip(division.pieces, built, strict=True))
    stands: dict[str, Shard | None] = {shard.path: shard for shard in division.kept}
    stands |= {piece.replaces: shard for piece, shard in pairs if piece.replaces}
    new = [shard for piece, shard in pairs if not piece.replaces]
    return [shard for shard in [*(stands.get(shard.path) for shard in current), *new] if shard]


def _next_version(plan: Plan, sop: bool, shards: Sequence[Shard], similar: str | None) -> Version:
    settings = plan.settings
    number = plan.current.version + 1 if plan.current else 1
    documents = plan.workspace.relative(plan.workspace.documents(settings.corpus))
    return Version(
        corpus=settings.corpus,
        version=number,
        recipe_hash=plan.recipe_hash,
        sop=sop,
        tokenizer=plan.workspace.relative(plan.tokenizer_path),
        **sum_counts(shards),
        index_path=f"{documents}/index-{plan.recipe_hash}-{number}.parquet",
        held_out_share=plan.current.held_out_share if plan.current else _held_out_share(plan, shards),
        similar_words=similar,
    )


def _held_out_share(plan: Plan, shards: Sequence[Shard]) -> float:
    """Choose the share of a new corpus: the workspace's, or more if too few documents are below it.

    A document is held out if its side, as a fraction, is below the share.
    """
    documents = sum(shard.documents for shard in shards)
    shares = [_HELD_OUT_SHARE, min(_MOST_HELD_OUT, _HELD_OUT_DOCUMENTS / max(documents, 1))]
    if has_catalog(plan.workspace):
        with read_catalog(plan.workspace) as db:
            shares.append(never_trained_share(db))
    if 1 < documents < _SMALL:  # a single one leaves nothing to train on, held out or not
        tables = [pq.read_table(plan.workspace.root / shard.path, columns=["side"]) for shard in shards]
        sides = np.unique(pa.concat_tables(tables)["side"].to_numpy())  # ascending
        fewest = max(1, min(_FEWEST_HELD_OUT, int(_MOST_HELD_OUT * len(sides))))
        shares.append(min((int(sides[fewest - 1]) + 1) / 2**32, 0.9))
    return max(shares)


def _index(
    plan: Plan, version: Version, shards: Sequence[Shard], division: Division, db: duckdb.DuckDBPyConnection
) -> list[FunnelRow]:
    """Write the version's list of documents; return its funnel."""
    db.execute(f"create view listed as from {parquet([division.listed_path])}")
    write_index(db, plan.workspace.root, version, shards, current_index(plan))
    rows = funnel_rows(db, version)
    return [*rows, *order_rows(db, [plan.workspace.root / shard.path for shard in shards if version.sop])]


def discover(plan: Plan, result: RefreshResult) -> list[Word]:
    """Find new words of a refresh's version, and write them to the workspace as a dictionary."""
    settings = plan.settings
    words = corpus_words(
        plan.workspace, result.corpus, dictionaries=settings.dictionary, limit=settings.discover_words
    )
    write_dictionary(words, plan.workspace.lexicon(result.corpus, result.version))
    return words


def corpus_words(
    workspace: Workspace, corpus: str, *, dictionaries: tuple[str, ...] = (), limit: int
) -> list[Word]:
    """Find new words of the current version of a corpus."""
    with Statistics(workspace) as statistics:
        return discover_words(statistics.texts(corpus), segmenter=segmenter(dictionaries), limit=limit)
