"""Which documents go into which shard. Kept shards stay as they are; new ones take the documents none holds
yet.

All of it runs in DuckDB over Parquet files, out of memory where it must.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from data.shards import Shard


@dataclass(frozen=True, slots=True)
class Piece:
    """Work for one shard: the documents listed in a staged file."""

    number: int
    assigned_path: str  # staged Parquet: doc_id, source_uri, sentences or words, in order
    documents: int
    replaces: str | None  # path of the shard this one is written in place of, if any


@dataclass(frozen=True, slots=True)
class Assignment:
    kept: tuple[Shard, ...]
    pieces: tuple[Piece, ...]
    removed_documents: int


def file_list(paths: Sequence[Path]) -> str:
    """Paths as an SQL list."""
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"


def connect(staging: Path) -> duckdb.DuckDBPyConnection:
    """A connection in memory that spills beside the staged files; its order depends on no thread."""
    staging.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(
        config={
            "temp_directory": str(staging / "duckdb"),
            "memory_limit": "2GB",
            "preserve_insertion_order": True,
        }
    )


def list_documents(db: duckdb.DuckDBPyConnection, listings: Sequence[Path]) -> None:
    """Make the table `listed`: every row of the listings in order, repeated documents marked as dropped."""
    selects = " union all ".join(
        f"select {number} as source, file_row_number as row, * exclude (file_row_number) "
        f"from read_parquet({file_list([path])}, file_row_number = true)"
        for number, path in enumerate(listings)
    )
    db.execute(
        f"""
        create or replace temp table listed as
        with ordered as (select *, row_number() over (order by source, row) as position from ({selects})),
        firsts as (select doc_id, min(position) as first from ordered where stage is null group by doc_id)
        select ordered.* exclude (stage, reason),
            case when stage is null and position > first then 'deduplicate' else stage end as stage,
            case when stage is null and position > first then 'duplicate' else reason end as reason
        from ordered left join firsts using (doc_id)
        """
    )


def has_order(db: duckdb.DuckDBPyConnection) -> bool:
    """Whether the corpus's documents are texts in which sentence order means something.

    Documents of one or two sentences are pairs, questions, remarks: their order, if any, carries no
    discourse.
    """
    ((share,),) = db.execute(
        "select avg((sentences >= 3)::integer) from listed where stage is null"
    ).fetchall()
    return (share or 0.0) >= 0.5


def assign(
    db: duckdb.DuckDBPyConnection,
    current: Sequence[Shard],
    root: Path,
    staged: Sequence[Path],
    staging: Path,
    shard_characters: int,
) -> Assignment:
    """Divide the kept documents of `listed` among shards.

    `current` shards with all their documents still there are kept. One that lost documents is written anew
    with the rest. New documents follow in order, `shard_characters` of them at a time.
    """
    db.execute("create or replace temp table held (doc_id varchar, shard varchar)")
    for shard in current:
        db.execute(
            "insert into held select doc_id, ? from "
            f"read_parquet({file_list([root / shard.documents_path])})",
            [shard.path],
        )
    gone = dict(
        db.execute(
            "select shard, count(*) from held anti join (from listed where stage is null) using (doc_id) "
            "group by shard"
        ).fetchall()
    )
    kept = tuple(shard for shard in current if shard.path not in gone)
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
    if staged:
        pieces += _assign_new(db, staged, staging, shard_characters, len(pieces))
    return Assignment(kept, tuple(pieces), sum(gone.values()))


def _assign_new(
    db: duckdb.DuckDBPyConnection, staged: Sequence[Path], staging: Path, shard_characters: int, number: int
) -> list[Piece]:
    # from the end of one shard's characters to the end of the next's, in the order of the listing
    db.execute(
        """
        create or replace temp table fresh as
        select doc_id, position, (sum(characters) over (order by position) - characters) // ? as piece
        from listed anti join held using (doc_id) where stage is null
        """,
        [shard_characters],
    )
    pieces = []
    for (piece,) in db.execute("select distinct piece from fresh order by piece").fetchall():
        path = staging / f"assigned-{number + len(pieces):05d}.parquet"
        count = copy_to(
            db,
            # a document that stands in several files is staged as often; any copy has the same sentences
            "select doc_id, first(source_uri order by source_uri) as source_uri, any_value(sentences) as "
            "sentences "
            f"from read_parquet({file_list(staged)}) join (from fresh where piece = {int(piece)}) using "
            "(doc_id) "
            "group by doc_id, position order by position",
            path,
        )
        if count:
            pieces.append(Piece(number + len(pieces), str(path), count, None))
    return pieces


def copy_to(db: duckdb.DuckDBPyConnection, select: str, path: Path) -> int:
    """Write the rows of a query as a Parquet file; returns how many there were."""
    ((count,),) = db.execute(
        f"copy ({select}) to '{str(path).replace(chr(39), chr(39) * 2)}' (format parquet)"
    ).fetchall()
    return count
