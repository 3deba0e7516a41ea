"""Which documents are used, and which shard each goes into. Shards with all their documents are kept; new
shards take the documents that none holds yet.

All of it runs in DuckDB over the listings, spilling to disk if it must; no text is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog import TO_REBUILD, quoted
from data.cleaning import CharacterPairs, QualityRules, find_candidates, find_near_duplicates
from data.errors import InputError
from data.instances import MEND, OBJECTIVES, SHARD_CHARACTERS, Shard, count_row_groups, verify
from data.refresh.build import Piece
from data.refresh.plan import Plan

T = TypeVar("T")

_MEMORY = "400MB"
_MEASURED = 256  # documents at a time
_PERPLEXITY = pa.schema([("doc_id", pa.string()), ("perplexity", pa.float64())])
_UNUSED = "anti join (from listed where stage is null) using (doc_id)"
_ROW_BITS = 40  # a document's position is its source's number above these bits of its row


@dataclass(frozen=True, slots=True)
class Division:
    """How the documents are divided among the shards of the next version."""

    kept: tuple[Shard, ...]
    pieces: tuple[Piece, ...]  # to build
    removed_documents: int
    sop: bool  # whether any source gets sentence order
    listed_path: Path  # every document with its fate, staged


def file_list(paths: Sequence[Path | str]) -> str:
    """Write paths as an SQL list."""
    return "[" + ", ".join(quoted(str(path)) for path in paths) + "]"


def connect(staging: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database that spills beside the staged files; results do not depend on threads."""
    staging.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(
        config={
            "temp_directory": str(staging / "duckdb"),
            "memory_limit": _MEMORY,
            "threads": threads,
        }
    )


def interruptible(db: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Return what `work` does; an exception that a signal raises meanwhile, such as KeyboardInterrupt, ends
    its query of `db`.

    The work runs in another thread: in this one DuckDB would replace the exception, and wait for its own
    threads, which finish their part unless the connection is interrupted.
    """
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            return working.result()
        finally:
            while not working.done():
                db.interrupt()
                wait([working], 0.1)  # again: it may have been between two queries


def list_documents(db: duckdb.DuckDBPyConnection, plan: Plan, listings: Sequence[Path]) -> list[int]:
    """Make the table `listed`: every row of the listings, in the order of `position`, with its fate.

    Also makes `held` (doc_id, shard's number) of the documents in current shards, and the candidates of near
    duplication: those that the current version knows are not compared again. Returns the numbers of the
    sources whose text decides about candidates.
    """
    root, shards = plan.workspace.root, plan.current_shards
    for shard in shards:
        for path in (shard.path, shard.documents_path):
            count_row_groups(root / path)  # raises InputError if it is lost, DuckDB an error of its own
    _list_rows(db, listings)
    db.execute("create or replace table held (doc_id varchar, shard bigint)")
    if shards:
        files = file_list([root / shard.documents_path for shard in shards])
        db.execute(f"insert into held select doc_id, file_index from read_parquet({files})")
    index = current_index(plan) if shards else None
    if plan.settings.quality.max_perplexity and index:
        _set_perplexity(db, index)
    if plan.settings.duplicates.near is None:
        return []
    _settle_near_duplicates(db, index)
    find_candidates(db)
    db.execute(
        """
        create or replace table compared as
        with ranks as (select later as rank from candidates union select earlier from candidates)
        from sketched semi join ranks using (rank)
        """
    )
    return _distinct(db, "source", "compared anti join held using (doc_id)")


def current_index(plan: Plan) -> Path | None:
    """The current version's list of documents; None without one, or if it is lost and all is built again.

    Raises InputError if it is lost otherwise.
    """
    if plan.current is None:
        return None
    index = plan.workspace.root / plan.current.index_path
    try:
        count_row_groups(index)
    except InputError:
        if plan.current.recipe_hash != TO_REBUILD:
            raise
        return None
    return index


def drop_repeated(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path | None]) -> list[int]:
    """Mark near duplicates and boilerplate in `listed`; return the sources whose text goes into shards.

    Text comes from the staged files and the shards' documents files. Of near duplicates the one that the
    current version has stays, or else the first.
    """
    settings = plan.settings
    if settings.duplicates.near is not None:
        documents = [plan.workspace.root / shard.documents_path for shard in plan.current_shards]
        near, ngram = settings.duplicates.near, settings.duplicates.ngram
        _drop_near_duplicates(db, near, ngram, [path for path in staged if path], documents)
    if settings.quality.boilerplate_documents:
        _drop_boilerplate(db, settings.quality)
    _drop_above(db, settings.quality)
    return _distinct(db, "source", "listed anti join held using (doc_id) where stage is null")


def _distinct(db: duckdb.DuckDBPyConnection, column: str, rows: str) -> list[int]:
    query = f"select distinct {column} from {rows} order by {column}"
    return [number for (number,) in db.execute(query).fetchall()]


def _nothing_usable(db: duckdb.DuckDBPyConnection, plan: Plan) -> InputError:
    reasons = db.execute("select reason, count(*) from listed group by reason order by reason").fetchall()
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons) or "nothing was in it"
    first = db.execute(
        "select source_uri from listed where stage = 'read' order by position limit 1"
    ).fetchone()
    place = f"; first: {first[0]}" if first else ""
    names = ", ".join(source if isinstance(source, str) else source.path for source in plan.settings.source)
    return InputError(f"no document of {names} can be used ({dropped}{place}): no version was made")


def _list_rows(db: duckdb.DuckDBPyConnection, listings: Sequence[Path]) -> None:
    db.execute(
        f"""
        create or replace view listing_rows as
        select (file_index::bigint << {_ROW_BITS}) | file_row_number as position,
            file_index::bigint as source, *
        from read_parquet({file_list(listings)});
        create or replace table firsts as
            select doc_id, min(position) as first from listing_rows where stage is null group by doc_id;
        create or replace table listed as
        select * exclude (sentence_hashes, sentence_lengths, bands, first) replace (
            case when stage is null and position > first then 'deduplicate' else stage end as stage,
            case when stage is null and position > first then 'duplicate' else reason end as reason),
            case when stage is null and position > first then doc_id end as duplicate_of,
            null::double as perplexity
        from listing_rows left join firsts using (doc_id);
        drop table firsts;
        """
    )


_NEAR = "stage = 'deduplicate', reason = 'near_duplicate', duplicate_of"


def _settle_near_duplicates(db: duckdb.DuckDBPyConnection, index: Path | None) -> None:
    """Drop known near copies of documents that are still there; make the table `sketched` of the others."""
    known = f"read_parquet({file_list([index])})" if index else "listed where false"
    reason = "dropped_reason" if index else "reason as dropped_reason"
    db.execute(
        f"""
        create or replace temp table known as select doc_id, {reason}, duplicate_of from {known};
        create or replace temp table original as
        select doc_id from known semi join (from listed where stage is null) using (doc_id)
        where coalesce(dropped_reason, 'boilerplate') in ('boilerplate', 'perplexity');
        update listed set {_NEAR} = known.duplicate_of
        from known semi join original on duplicate_of = original.doc_id
        where listed.doc_id = known.doc_id and stage is null and dropped_reason = 'near_duplicate';
        create or replace table sketched as
        select listed.doc_id, listed.source, original.doc_id is not null as is_known, bands,
            row_number() over (order by original.doc_id is null, position) as rank
        from listed join (select position, bands from listing_rows where bands is not null) using (position)
        left join original using (doc_id)
        where stage is null;
        """
    )


def _drop_near_duplicates(
    db: duckdb.DuckDBPyConnection,
    threshold: float,
    ngram: int,
    staged: Sequence[Path],
    documents: Sequence[Path],
) -> None:
    texts = [f"select doc_id, text from read_parquet({file_list(documents)})"] if documents else []
    if staged:
        text = "array_to_string(sentences, '\n')"
        texts.append(f"select doc_id, {text} as text from read_parquet({file_list(staged)})")
    db.execute(
        f"""
        create or replace table texts as
        select distinct on (rank) rank, text from ({" union all ".join(texts)}) join compared using (doc_id)
        """
    )
    find_near_duplicates(db, threshold, ngram)
    db.execute(
        f"""
        update listed set {_NEAR} = earlier.doc_id
        from near join compared later on later.rank = near.later
        join compared earlier on earlier.rank = near.earlier
        where listed.doc_id = later.doc_id and stage is null;
        drop table sketched; drop table compared; drop table texts;
        """
    )


def _drop_boilerplate(db: duckdb.DuckDBPyConnection, quality: QualityRules) -> None:
    db.execute(
        """
        create or replace table lines as
        select position, unnest(sentence_hashes) as hash, unnest(sentence_lengths) as length
        from listing_rows semi join (from listed where stage is null) using (position);
        create or replace table common as
        select hash from lines group by hash
        having count(*) >= $documents and count(distinct position) >= $documents;
        """,
        {"documents": quality.boilerplate_documents},
    )
    db.execute(
        """
        update listed set stage = 'boilerplate', reason = 'boilerplate' where position in (
            select position from lines left join common using (hash) group by position
            having coalesce(sum(length) filter (common.hash is not null), 0) > ? * sum(length));
        """,
        [quality.max_boilerplate],
    )
    db.execute("drop table lines; drop table common")


def assign(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path | None]) -> Division:
    """Drop unlikely documents of `listed`, and divide the others among shards.

    Current shards that lost no document are kept; the others are built again from the rest. New documents
    follow in order, about SHARD_CHARACTERS to a shard; `staged` [sources] says where their text is. Raises
    InputError if no document can be used.
    """
    here = {number: str(path) for number, path in enumerate(staged) if path}
    db.register("staged_files", pa.table({"source": list(here), "file": list(here.values())}))
    _drop_unlikely(db, plan, list(here.values()))
    if not db.execute("from listed where stage is null").fetchone():
        raise _nothing_usable(db, plan)
    sop, root = _find_order(db, plan), plan.workspace.root
    losing = _distinct(db, "shard", f"held {_UNUSED}")
    pieces: list[Piece] = []
    for shard in (plan.current_shards[number] for number in losing):
        if not verify(root / shard.documents_path, shard.documents_sha256):  # DuckDB reads no checksums
            raise InputError(f"{root / shard.documents_path} is gone or damaged: {MEND}")
        path = plan.staging / f"assigned-{len(pieces):05d}.parquet"
        if _copy_rest(db, root / shard.documents_path, path):
            pieces.append(Piece(len(pieces), path, shard.path))
    _number_pieces(db)
    for number in _distinct(db, "piece", "numbered"):
        path = plan.staging / f"assigned-{len(pieces):05d}.parquet"
        rows = f"numbered join staged_files using (source) where piece = {number} order by position"
        copy_to(db, f"select file as staged_path, staged_row, has_order from {rows}", path)
        pieces.append(Piece(len(pieces), path, None))
    gone = set(losing)
    kept = tuple(shard for number, shard in enumerate(plan.current_shards) if number not in gone)
    listed = plan.staging / "listed.parquet"
    copy_to(db, "from listed order by position", listed)
    return Division(kept, tuple(pieces), _count_removed(db, plan), sop, listed)


def _count_removed(db: duckdb.DuckDBPyConnection, plan: Plan) -> int:
    """Count documents that the current version has, and the next has not."""
    if not (index := current_index(plan)):
        return 0
    query = f"select count(*) from read_parquet({file_list([index])}) {_UNUSED} where words is not null"
    ((count,),) = db.execute(query).fetchall()
    return count


def _drop_unlikely(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[str]) -> None:
    """Measure the perplexity of documents that came now, if there is a bound, and drop those above it.

    All documents that are used are counted; those that came before keep what was measured then.
    """
    rules = plan.settings.quality
    new = "listed where stage is null and perplexity is null"
    if not rules.max_perplexity or not _distinct(db, "source", new):
        return
    of_new = f"""
        select doc_id, array_to_string(sentences, '\n') as text
        from read_parquet({file_list(staged)}, filename = true, file_row_number = true) rows
        join staged_files on file = filename
        semi join (from {new}) new on new.source = staged_files.source and staged_row = file_row_number
        """
    documents = file_list([plan.workspace.root / shard.documents_path for shard in plan.current_shards])
    of_held = f"""
        select doc_id, text from read_parquet({documents})
        semi join (from listed where stage is null and perplexity is not null) using (doc_id)
        """
    pairs, path = CharacterPairs(), plan.staging / "perplexity.parquet"
    for query in [of_new, of_held] if plan.current_shards else [of_new]:
        reader = db.execute(query)
        while rows := reader.fetchmany(_MEASURED):
            pairs.add(*zip(*rows, strict=True))
    with pq.ParquetWriter(path, _PERPLEXITY) as writer:
        reader = db.execute(of_new)
        while rows := reader.fetchmany(_MEASURED):
            doc_ids, texts = zip(*rows, strict=True)
            writer.write_table(pa.table([doc_ids, pairs.perplexities(doc_ids, texts)], schema=_PERPLEXITY))
    _set_perplexity(db, path)
    _drop_above(db, rules)


def _set_perplexity(db: duckdb.DuckDBPyConnection, path: Path) -> None:
    db.execute(
        f"""
        update listed set perplexity = measured.perplexity from read_parquet({file_list([path])}) measured
        where listed.doc_id = measured.doc_id and listed.stage is null and measured.perplexity is not null
        """
    )


def _drop_above(db: duckdb.DuckDBPyConnection, quality: QualityRules) -> None:
    dropped = "update listed set stage = 'filter', reason = 'perplexity'"
    db.execute(f"{dropped} where stage is null and perplexity > ?", [quality.max_perplexity])


def _find_order(db: duckdb.DuckDBPyConnection, plan: Plan) -> bool:
    """Set `has_order` in `listed` for sources whose documents get sentence order; return whether any does.

    For "auto" at least half of a source's documents have three sentences: shorter ones are pairs, questions
    or remarks, whose order carries no discourse. Raises InputError if order was requested but there is none.
    """
    sop, possible = plan.settings.instances.sop, OBJECTIVES[plan.settings.objective].sentence_order
    if sop == "on" and not db.execute("from listed where stage is null and sentences > 1").fetchone():
        raise InputError(
            "sop=on: every document is a single sentence, so there is no order to learn; "
            "pass --instances.sop off or auto"
        )
    share = "avg((sentences >= 3)::integer) >= 0.5"
    having = {"on": "true", "off": "false"}.get(sop, share) if possible else "false"
    db.execute(
        f"""
        alter table listed add column has_order boolean;
        update listed set has_order = source in (
            select source from listed where stage is null group by source having {having})
        """
    )
    return db.execute("from listed where has_order").fetchone() is not None


def _copy_rest(db: duckdb.DuckDBPyConnection, documents: Path, path: Path) -> int:
    """Copy those documents of a shard that are still used; return how many there are."""
    return copy_to(
        db,
        f"""
        select doc_id, rows.source_uri, words, has_order
        from read_parquet({file_list([documents])}, file_row_number = true) rows
        join (select doc_id, has_order from listed where stage is null) using (doc_id)
        order by file_row_number
        """,
        path,
    )


def _number_pieces(db: duckdb.DuckDBPyConnection) -> None:
    """Make the table `numbered` of the documents that no shard holds, with the number of each one's piece."""
    db.execute(
        """
        create or replace table numbered as
        select (sum(characters) over (order by position) - characters) // ? as piece, position, source,
            staged_row, has_order
        from listed anti join held using (doc_id) where stage is null order by position
        """,
        [SHARD_CHARACTERS],
    )


def copy_to(db: duckdb.DuckDBPyConnection, select: str, path: Path) -> int:
    """Write the rows of a query to a Parquet file; return how many there are."""
    ((count,),) = db.execute(f"copy ({select}) to {quoted(str(path))} (format parquet)").fetchall()
    return count
