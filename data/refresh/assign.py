"""Which shard each document goes into: those with all their documents are kept, new ones take the rest.

All of it runs in DuckDB over the table `listed`; no text is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from data.catalog import parquet
from data.errors import InputError
from data.instances import MEND, OBJECTIVES, SHARD_CHARACTERS, Shard, verify
from data.refresh.build import Piece
from data.refresh.fates import current_index, drop_unlikely
from data.refresh.funnel import LONG_ADVICE, LONG_DOCUMENTS
from data.refresh.plan import Plan
from data.refresh.scratch import copy_to, distinct
from data.refresh.settings import advice_for


@dataclass(frozen=True, slots=True)
class Division:
    """How the documents are divided among the shards of the next version."""

    kept: tuple[Shard, ...]
    pieces: tuple[Piece, ...]  # to build
    removed_documents: int
    sop: bool  # whether any source gets sentence order
    listed_path: Path  # every document with its fate, staged


def assign(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path | None]) -> Division:
    """Drop unlikely documents of `listed`, and divide the others among shards.

    Current shards whose documents all stay as they are are kept; the others are built again from the rest.
    New documents follow in order, about SHARD_CHARACTERS to a shard; their text is in the files of `staged`
    [listings]. Raises InputError if no document can be used.
    """
    here = {number: str(path) for number, path in enumerate(staged) if path}
    db.register("staged_files", pa.table({"listing": list(here), "file": list(here.values())}))
    drop_unlikely(db, plan, [path for path in staged if path])
    if not db.execute("from listed where stage is null").fetchone():
        raise _nothing_usable(db, plan)
    sop, root = _find_order(db, plan), plan.workspace.root
    losing = _find_stale(db, plan)
    pieces: list[Piece] = []
    for shard in (plan.current_shards[number] for number in losing):
        if not verify(root / shard.documents_path, shard.documents_sha256):  # DuckDB reads no checksums
            raise InputError(f"{root / shard.documents_path} is gone or damaged: {MEND}")
        path = plan.staging / f"assigned-{len(pieces):05d}.parquet"
        if _list_rest(db, root / shard.documents_path, path):
            pieces.append(Piece(len(pieces), path, shard.path))
    _number_pieces(db)
    for number in distinct(db, "piece", "numbered"):
        path = plan.staging / f"assigned-{len(pieces):05d}.parquet"
        rows = f"numbered join staged_files using (listing) where piece = {number} order by position"
        copy_to(db, f"select file, staged_row as row, has_order from {rows}", path)
        pieces.append(Piece(len(pieces), path, None))
    gone = set(losing)
    kept = tuple(shard for number, shard in enumerate(plan.current_shards) if number not in gone)
    listed = plan.staging / "listed.parquet"
    copy_to(db, "from listed order by position", listed)
    return Division(kept, tuple(pieces), _count_removed(db, plan), sop, listed)


def _nothing_usable(db: duckdb.DuckDBPyConnection, plan: Plan) -> InputError:
    reasons = db.execute("select reason, count(*) from listed group by reason order by reason").fetchall()
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons) or "nothing was in it"
    unread = "select source_uri, beginning from listed where stage = 'read' order by position limit 1"
    first = db.execute(unread).fetchone()
    place = f"; first: {first[0]}" + (f" with {first[1]}" if first[1] else "") if first else ""
    names = ", ".join(source if isinstance(source, str) else source.path for source in plan.settings.source)
    is_long = db.execute(f"from {LONG_DOCUMENTS}").fetchone()
    advice = "".join(f"; {one}" for one in (*advice_for(dict(reasons)), *([LONG_ADVICE] if is_long else [])))
    return InputError(f"no document of {names} can be used ({dropped}{place}): no version was made{advice}")


def _count_removed(db: duckdb.DuckDBPyConnection, plan: Plan) -> int:
    """Count documents that the current version has, and the next has not."""
    if not (index := current_index(plan)):
        return 0
    gone = f"{parquet([index])} anti join (from listed where stage is null) using (doc_id)"
    ((count,),) = db.execute(f"select count(*) from {gone} where words is not null").fetchall()
    return count


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
        update listed set has_order = (listing, source) in (
            select (listing, source) from listed where stage is null group by listing, source having {having})
        """
    )
    return db.execute("from listed where has_order").fetchone() is not None


def _find_stale(db: duckdb.DuckDBPyConnection, plan: Plan) -> list[int]:
    """List the current shards with documents that are not used, or now get another sentence order."""
    index = current_index(plan)
    if index is None or not plan.current_shards:
        return []
    rows = f"""
        held anti join (
            select doc_id from listed left join (
                select doc_id as built_id, has_order as had_order from (
                    select null::boolean as has_order, 'none' as dropped_stage
                    union all by name from {parquet([index])})
                where dropped_stage is null) on doc_id = built_id
            where stage is null and has_order = coalesce(had_order, has_order)) using (doc_id)
        """
    return distinct(db, "shard", rows)


def _list_rest(db: duckdb.DuckDBPyConnection, documents: Path, path: Path) -> int:
    """List those documents of a shard that are still used; return how many there are."""
    return copy_to(
        db,
        f"""
        select filename as file, file_row_number as row, has_order
        from {parquet([documents], "filename = true, file_row_number = true")}
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
        select (sum(characters) over (order by position) - characters) // ? as piece, position, listing,
            staged_row, has_order
        from listed anti join held using (doc_id) where stage is null order by position
        """,
        [SHARD_CHARACTERS],
    )
