"""What a version is made of: how much went into and out of each stage, and the list of every document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from data.catalog import SOURCE_FILE, FunnelRow, Version, parquet
from data.cleaning import REMOVED_URL
from data.files import replacing
from data.instances import Shard
from data.refresh.scratch import copy_to

LONG_DOCUMENT = 100_000  # characters; a book, or a file of many documents
LONG_DOCUMENTS = f"(from listed where text_format = 'document' and raw_characters > {LONG_DOCUMENT})"
LONG_ADVICE = "if each line is a document, set --reading.text-format lines; if blank lines part them, bert"
STAGES = ("read", "clean", "filter", "guard", "deduplicate", "boilerplate", "instances")

# what the stages before the last lost: characters of a document that was read are those left by cleaning
_LOSSES = """
with cleaned as (from listed where stage is distinct from 'read'),
losses as (
    select stage, 'documents' as unit, reason, count(*) as amount
    from listed where stage is not null group by all
    union all
    select stage, 'characters', reason, sum(if(stage = 'read', raw_characters, characters))
    from listed where stage is not null group by all
    union all
    select 'clean', 'characters', 'markup_controls_spaces', sum(raw_characters - characters - undecodable)
    from cleaned
    union all
    select 'clean', 'characters', 'undecodable', sum(undecodable) from cleaned)
select stage, unit, reason, amount::bigint from losses where amount <> 0 order by reason
"""


def funnel_rows(db: duckdb.DuckDBPyConnection, version: Version) -> list[FunnelRow]:
    """Make the funnel of a version from the table `listed`.

    One row for each stage, unit (documents, characters) and reason; its reason is null if nothing was lost.
    """
    lost: dict[tuple[str, str], list[tuple[str | None, int]]] = {}
    for stage, unit, reason, amount in db.execute(_LOSSES).fetchall():
        lost.setdefault((stage, unit), []).append((reason, amount))
    (listed,) = db.execute("select count(*), sum(raw_characters)::bigint from listed").fetchall()
    rows: list[FunnelRow] = []
    for unit, before in zip(("documents", "characters"), listed, strict=True):
        used = getattr(version, unit)
        for step, stage in enumerate(STAGES):
            losses = lost.get((stage, unit), [])
            if stage == "instances" and used != before:
                losses = [("no_token_in_vocabulary", before - used)]
            after = before - sum(amount for _, amount in losses)
            rows += [FunnelRow(step, stage, unit, before, after, *loss) for loss in losses or [(None, 0)]]
            before = after
    return [*rows, *_details(db)]


def _details(db: duckdb.DuckDBPyConnection) -> list[FunnelRow]:
    """Make rows without input and output: placeholders, URLs, encodings, hits of a reporting guard."""
    rows = db.execute(
        f"""
        with entries as (select unnest(map_entries(placeholders)) as entry from listed)
        select 'clean', if(entry.key = $url, 'removed', 'placeholders'), entry.key,
            sum(entry.value)::bigint from entries group by all
        union all
        select 'read', 'decoded_from', encoding, count(*) from listed group by encoding
        union all
        select 'read', 'files_read_as', text_format, count(distinct {SOURCE_FILE})
        from listed group by text_format
        union all
        select 'read', 'files_with_long', 'documents', count(distinct {SOURCE_FILE}) from {LONG_DOCUMENTS}
        union all
        select 'guard', 'kept', 'in_evaluation_set', nullif(count(*), 0)
        from listed where stage is null and guard_hits > 0
        order by all
        """,
        {"url": REMOVED_URL},
    ).fetchall()
    return [
        FunnelRow(STAGES.index(stage), stage, unit, 0, 0, reason, count)
        for stage, unit, reason, count in rows
        if reason and count
    ]


def order_rows(db: duckdb.DuckDBPyConnection, shards: Sequence[Path]) -> list[FunnelRow]:
    """Count the instances of shards without a sentence-order label, by the reason."""
    if not shards:
        return []
    rows = db.execute(
        f"""
        select if(has_order, 'no_pair', 'source_without_order') as reason, count(*)
        from (select doc_id from {parquet(shards)} where sop_label is null)
        join (select doc_id, has_order from listed where stage is null) using (doc_id)
        group by all order by all
        """
    ).fetchall()
    return [FunnelRow(len(STAGES) - 1, STAGES[-1], "without_order", 0, 0, *row) for row in rows]


def write_index(
    db: duckdb.DuckDBPyConnection, root: Path, version: Version, shards: Sequence[Shard], before: Path | None
) -> None:
    """Write every document of the table `listed` to the file behind the catalog's view `documents`.

    Word counts come from the shards' documents files, the version that first had a document from the index
    `before`. A copy of a near duplicate repeats what that one does.
    """
    documents = parquet(root / shard.documents_path for shard in shards)
    firsts = "select null::varchar as doc_id, null::integer as first_version where false"
    if before:
        firsts = f"""
            select doc_id, min(first_version) as first_version
            from {parquet([before])}
            where dropped_stage is null group by doc_id
            """
    with replacing(root / version.index_path) as temporary:
        copy_to(
            db,
            f"""
            with counted as (select doc_id, word_count as words from {documents}),
            previous as ({firsts}),
            near as (select doc_id, duplicate_of from listed where reason = 'near_duplicate')
            select doc_id, source_uri, characters as chars, sentences::bigint as sentences,
                case when stage is null then words end::bigint as words,
                case when stage is null then coalesce(first_version, {version.version}) end::integer
                    as first_version,
                stage as dropped_stage, reason as dropped_reason,
                coalesce(near.duplicate_of, listed.duplicate_of) as duplicate_of, perplexity,
                guard_hits, language, case when stage is null then has_order end as has_order,
                case when stage is not null then beginning end as beginning
            from listed left join counted using (doc_id) left join previous using (doc_id)
                left join near using (doc_id)
            order by position
            """,
            temporary,
        )
