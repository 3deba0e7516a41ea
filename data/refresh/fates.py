"""What becomes of each document: it is used, or dropped as repeated, boilerplate or unlikely.

All of it runs in DuckDB over the listings; text is read only to compare near duplicates and for perplexities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog import TO_REBUILD, parquet
from data.cleaning import CharacterPairs, QualityRules, fetch_texts, find_candidates, find_near_duplicates
from data.errors import InputError
from data.instances import count_row_groups
from data.refresh.plan import Plan
from data.refresh.scratch import distinct

_PERPLEXITY = pa.schema([("doc_id", pa.string()), ("perplexity", pa.float64())])
_ROW_BITS = 40  # a document's position is its listing's number above these bits of its row
_NEAR = "stage = 'deduplicate', reason = 'near_duplicate', duplicate_of"


def list_documents(db: duckdb.DuckDBPyConnection, plan: Plan, listings: Sequence[Path]) -> list[int]:
    """Make the table `listed`: every row of the listings, in the order of `position`, with its fate.

    Also makes `held` (doc_id, shard's number) of the documents in current shards, and the candidates of near
    duplication: those that the current version knows are not compared again. Returns the numbers of the
    listings whose text decides about candidates.
    """
    root, shards = plan.workspace.root, plan.current_shards
    for shard in shards:
        for path in (shard.path, shard.documents_path):
            count_row_groups(root / path)  # raises InputError if it is lost, DuckDB an error of its own
    _list_rows(db, listings)
    db.execute("create or replace table held (doc_id varchar, shard bigint)")
    if shards:
        db.execute(f"insert into held select doc_id, file_index from {_documents(plan)}")
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
    return distinct(db, "listing", "compared anti join held using (doc_id)")


def _documents(plan: Plan, staged: Sequence[Path] = ()) -> str:
    """Write in SQL the rows of staged files and of the current shards' documents files."""
    held = (plan.workspace.root / shard.documents_path for shard in plan.current_shards)
    return parquet([*staged, *held])


def current_index(plan: Plan) -> Path | None:
    """Find the current version's list of documents; None if there is none, or all is built as it is lost.

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


def _list_rows(db: duckdb.DuckDBPyConnection, listings: Sequence[Path]) -> None:
    db.execute(
        f"""
        create or replace view listing_rows as
        select (file_index::bigint << {_ROW_BITS}) | file_row_number as position,
            file_index::bigint as listing, *
        from {parquet(listings)};
        create or replace table listed as
        with firsts as (
            select doc_id, min(position) as first from listing_rows where stage is null group by doc_id)
        select * exclude (sentence_hashes, sentence_lengths, bands, first) replace (
            case when stage is null and position > first then 'deduplicate' else stage end as stage,
            case when stage is null and position > first then 'duplicate' else reason end as reason),
            case when stage is null and position > first then doc_id end as duplicate_of,
            null::double as perplexity
        from listing_rows left join firsts using (doc_id)
        """
    )


def _settle_near_duplicates(db: duckdb.DuckDBPyConnection, index: Path | None) -> None:
    """Drop known near copies of documents that are still there; make the table `sketched` of the others."""
    known = parquet([index]) if index else "listed where false"
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
        select listed.doc_id, listed.listing, original.doc_id is not null as is_known, bands,
            row_number() over (order by original.doc_id is null, position) as rank
        from listed join (select position, bands from listing_rows where bands is not null) using (position)
        left join original using (doc_id)
        where stage is null;
        """
    )


def drop_repeated(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path | None]) -> list[int]:
    """Mark near duplicates and boilerplate in `listed`; return the listings whose text goes into shards.

    Text comes from the staged files and the shards' documents files. Of near duplicates the one that the
    current version has stays, or else the first.
    """
    quality = plan.settings.quality
    _drop_near_duplicates(db, plan, [path for path in staged if path])
    if quality.boilerplate_documents:
        _drop_boilerplate(db, quality)
    _drop_above(db, quality)
    return distinct(db, "listing", "listed anti join held using (doc_id) where stage is null")


def _drop_near_duplicates(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path]) -> None:
    rules = plan.settings.duplicates
    if rules.near is None:
        return
    db.execute(
        f"""
        create or replace table texts as
        select distinct on (rank) rank, text from {_documents(plan, staged)} join compared using (doc_id)
        """
    )
    find_near_duplicates(db, rules.near, rules.ngram)
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
        with lines as materialized (
            select position, unnest(sentence_hashes) as hash, unnest(sentence_lengths) as length
            from listing_rows semi join (from listed where stage is null) using (position)),
        common as (
            select hash from lines group by hash
            having count(*) >= $documents and count(distinct position) >= $documents)
        update listed set stage = 'boilerplate', reason = 'boilerplate' where position in (
            select position from lines left join common using (hash) group by position
            having coalesce(sum(length) filter (common.hash is not null), 0) > $share * sum(length))
        """,
        {"documents": quality.boilerplate_documents, "share": quality.max_boilerplate},
    )


def drop_unlikely(db: duckdb.DuckDBPyConnection, plan: Plan, staged: Sequence[Path]) -> None:
    """Measure the perplexity of documents that came now, if there is a bound, and drop those above it.

    All documents that are used are counted; those that came before keep what was measured then.
    """
    rules = plan.settings.quality
    new = "listed where stage is null and perplexity is null"
    if not rules.max_perplexity or not distinct(db, "listing", new):
        return
    of_new = f"""
        select doc_id, text from {parquet(staged, "filename = true, file_row_number = true")} rows
        join staged_files on file = filename
        semi join (from {new}) new on new.listing = staged_files.listing and staged_row = file_row_number
        """
    of_held = f"""
        select doc_id, text from {_documents(plan)}
        semi join (from listed where stage is null and perplexity is not null) using (doc_id)
        """
    pairs, path = CharacterPairs(), plan.staging / "perplexity.parquet"
    for query in [of_new, of_held] if plan.current_shards else [of_new]:
        for rows in fetch_texts(db.execute(query)):
            pairs.add(*zip(*rows, strict=True))
    with pq.ParquetWriter(path, _PERPLEXITY) as writer:
        for rows in fetch_texts(db.execute(of_new)):
            doc_ids, texts = zip(*rows, strict=True)
            writer.write_table(pa.table([doc_ids, pairs.perplexities(doc_ids, texts)], schema=_PERPLEXITY))
    _set_perplexity(db, path)
    _drop_above(db, rules)


def _set_perplexity(db: duckdb.DuckDBPyConnection, path: Path) -> None:
    db.execute(
        f"""
        update listed set perplexity = measured.perplexity from {parquet([path])} measured
        where listed.doc_id = measured.doc_id and listed.stage is null and measured.perplexity is not null
        """
    )


def _drop_above(db: duckdb.DuckDBPyConnection, quality: QualityRules) -> None:
    dropped = "update listed set stage = 'filter', reason = 'perplexity'"
    db.execute(f"{dropped} where stage is null and perplexity > ?", [quality.max_perplexity])
