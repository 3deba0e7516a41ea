"""Which documents are used, and which shard they go into. Kept shards stay as they are; new ones take the
documents none holds yet.

All of it runs in DuckDB over the listings, out of memory where it must; no text is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data.cleaning import find_near_duplicates
from data.instances import Shard

T = TypeVar("T")

_MEMORY = "400MB"
_FETCHED = 1 << 16
_ROW_BITS = 40  # of a document's position: its source's number stands above its row


@dataclass(frozen=True, slots=True)
class Piece:
    """Work for one shard."""

    number: int
    assigned_path: str  # staged Parquet: which staged rows (path, row), or documents with their words
    documents: int
    replaces: str | None  # path of the shard this one is written in place of, if any


@dataclass(frozen=True, slots=True)
class Assignment:
    kept: tuple[Shard, ...]
    pieces: tuple[Piece, ...]
    removed_documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ListingRules:
    """What is decided about a document by looking at all the others."""

    near_duplicates: float | None = 0.8
    boilerplate_documents: int = 50
    max_boilerplate: float = 0.5


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def file_list(paths: Sequence[Path]) -> str:
    """Paths as an SQL list."""
    return "[" + ", ".join(quoted(str(path)) for path in paths) + "]"


def connect(staging: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """A connection in memory that spills beside the staged files; its results depend on no thread."""
    staging.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(
        config={
            "temp_directory": str(staging / "duckdb"),
            "memory_limit": _MEMORY,
            "threads": threads,
            "preserve_insertion_order": True,
        }
    )


def interruptible(db: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """What `work` returns. What a signal raises meanwhile, such as KeyboardInterrupt, ends its query of `db`.

    It has a thread of its own: in this one DuckDB would make the error another, and wait for its own threads,
    which work on to the end of their part unless the connection is told.
    """
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            return working.result()
        finally:
            while not working.done():
                db.interrupt()
                wait([working], 0.1)  # it may have been between two queries


def list_documents(
    db: duckdb.DuckDBPyConnection,
    listings: Sequence[Path],
    rules: ListingRules,
    held: Sequence[tuple[str, Path]] = (),
) -> None:
    """Make the table `listed`: every row of the listings, in the order of `position`, with its fate.

    Also `held` (doc_id, shard) from the documents files `held`, pairs of a shard's path and its file. Of
    near duplicates a document that a shard holds stays rather than one that none does, then the earlier.
    """
    db.register(
        "numbered", pa.table({"source": range(len(listings)), "file": [str(path) for path in listings]})
    )
    db.execute(
        f"""
        create or replace table listing_files as from numbered;
        create or replace view listing_rows as
        select (source::bigint << {_ROW_BITS}) | file_row_number as position, source,
            rows.* exclude (filename, file_row_number)
        from read_parquet({file_list(listings)}, filename = true, file_row_number = true) rows
        join listing_files on file = filename;
        create or replace table firsts as
            select doc_id, min(position) as first from listing_rows where stage is null group by doc_id;
        create or replace table listed as
        select position, source, staged_row, doc_id, source_uri, raw_characters, characters, sentences,
            encoding, undecodable, placeholders, guard_hits,
            case when stage is null and position > first then 'deduplicate' else stage end as stage,
            case when stage is null and position > first then 'duplicate' else reason end as reason,
            case when stage is null and position > first then doc_id end as duplicate_of
        from listing_rows left join firsts using (doc_id);
        drop table firsts;
        """
    )
    db.unregister("numbered")
    db.execute("create or replace table held (doc_id varchar, shard varchar)")
    if held:
        shards, files = zip(*held, strict=True)
        db.register("held_files", pa.table({"shard": shards, "file": list(map(str, files))}))
        db.execute(
            "insert into held select doc_id, shard from "
            f"read_parquet({file_list(files)}, filename = true) join held_files "
            "on file = filename"
        )
        db.unregister("held_files")
    if rules.near_duplicates is not None:
        _drop_near_duplicates(db, rules.near_duplicates)
    if rules.boilerplate_documents:
        _drop_boilerplate(db, rules.boilerplate_documents, rules.max_boilerplate)


def _drop_near_duplicates(db: duckdb.DuckDBPyConnection, threshold: float) -> None:
    db.execute(
        """
        create or replace table sketched as
        select listed.doc_id,
            row_number() over (order by held.doc_id is null, position) as rank, bands, signature
        from listed join (select position, bands, signature from listing_rows where bands is not null)
            using (position)
        left join (select distinct doc_id from held) held using (doc_id)
        where stage is null
        """
    )
    find_near_duplicates(db, threshold)
    db.execute(
        "update listed set stage = 'deduplicate', reason = 'near_duplicate', "
        "duplicate_of = near.duplicate_of from near where listed.doc_id = near.doc_id and stage is null"
    )
    db.execute("drop table sketched; drop table near")


def _drop_boilerplate(db: duckdb.DuckDBPyConnection, documents: int, share: float) -> None:
    db.execute(
        """
        create or replace table lines as
        select position, unnest(sentence_hashes) as hash, unnest(sentence_lengths) as length
        from listing_rows semi join (from listed where stage is null) using (position);
        create or replace table common as
        select hash from lines group by hash having count(*) >= ? and count(distinct position) >= ?;
        """,
        [documents, documents],
    )
    db.execute(
        """
        update listed set stage = 'boilerplate', reason = 'boilerplate' where position in (
            select position from lines left join common using (hash) group by position
            having coalesce(sum(length) filter (common.hash is not null), 0) > ? * sum(length));
        """,
        [share],
    )
    db.execute("drop table lines; drop table common")


def has_order(db: duckdb.DuckDBPyConnection) -> bool:
    """Whether the corpus's documents are texts in which sentence order means something.

    Documents of one or two sentences are pairs, questions, remarks: their order, if any, carries no
    discourse.
    """
    ((share,),) = db.execute(
        "select avg((sentences >= 3)::integer) from listed where stage is null"
    ).fetchall()
    return (share or 0.0) >= 0.5


def longest_document(db: duckdb.DuckDBPyConnection) -> int:
    """Sentences of the document that has most."""
    return db.execute("select coalesce(max(sentences), 0) from listed where stage is null").fetchall()[0][0]


def unstaged_sources(db: duckdb.DuckDBPyConnection, staged: Sequence[int]) -> list[int]:
    """Numbers of unchanged sources whose text is needed after all: what one of theirs repeated is gone."""
    rows = db.execute(
        "select distinct source from listed anti join held using (doc_id) where stage is null order by source"
    ).fetchall()
    return [number for (number,) in rows if number not in set(staged)]


def assign(
    db: duckdb.DuckDBPyConnection,
    current: Sequence[Shard],
    root: Path,
    staged: Sequence[Path | None],
    staging: Path,
    shard_characters: int,
) -> Assignment:
    """Divide the kept documents of `listed` among shards.

    `current` shards with all their documents still there are kept. One that lost documents is written anew
    with the rest. New documents follow in order, `shard_characters` of them at a time; `staged` [sources]
    says where their text is.
    """
    gone = dict(
        db.execute(
            "select shard, count(*) from held anti join (from listed where stage is null) using (doc_id) "
            "group by shard"
        ).fetchall()
    )
    pieces: list[Piece] = []
    for shard in (shard for shard in current if shard.path in gone):
        path = staging / f"assigned-{len(pieces):05d}.parquet"
        count = copy_to(
            db,
            f"select doc_id, source_uri, words from read_parquet({file_list([root / shard.documents_path])}, "
            "file_row_number = true) semi join (from listed where stage is null) using (doc_id) "
            "order by file_row_number",
            path,
        )
        if count:
            pieces.append(Piece(len(pieces), str(path), count, shard.path))
    for assigned in _new_pieces(db, shard_characters):
        number = len(pieces)
        path = staging / f"assigned-{number:05d}.parquet"
        paths = pa.array(
            [str(staged[source]) for source in assigned["source"].to_pylist()]
        ).dictionary_encode()
        pq.write_table(pa.table({"staged_path": paths, "staged_row": assigned["staged_row"]}), path)
        pieces.append(Piece(number, str(path), len(assigned), None))
    kept = tuple(shard for shard in current if shard.path not in gone)
    return Assignment(kept, tuple(pieces), sum(gone.values()))


def _new_pieces(db: duckdb.DuckDBPyConnection, shard_characters: int) -> Iterator[pa.Table]:
    """Source and staged row of the documents no shard holds, a piece at a time."""
    reader = db.sql(
        """
        select (sum(characters) over (order by position) - characters) // ? as piece, source, staged_row
        from listed anti join held using (doc_id) where stage is null order by position
        """,
        params=[shard_characters],
    ).to_arrow_reader(_FETCHED)
    parts: list[pa.Table] = []
    number = None
    for batch in reader:
        table = pa.Table.from_batches([batch])
        found = table["piece"].to_numpy()
        begin = 0
        while begin < len(found):
            end = begin + int((found[begin:] == found[begin]).sum())
            if parts and found[begin] != number:
                yield pa.concat_tables(parts)
                parts = []
            number = found[begin]
            parts.append(table.slice(begin, end - begin))
            begin = end
    if parts:
        yield pa.concat_tables(parts)


def copy_to(db: duckdb.DuckDBPyConnection, select: str, path: Path) -> int:
    """Write the rows of a query as a Parquet file; returns how many there were."""
    ((count,),) = db.execute(f"copy ({select}) to {quoted(str(path))} (format parquet)").fetchall()
    return count
