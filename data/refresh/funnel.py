"""What a version is made of, for people and queries: how much went in and out of each stage, and every
document.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from data.files import replacing
from data.instances import Shard
from data.refresh.assign import copy_to, file_list

STAGES = ("read", "clean", "filter", "guard", "deduplicate", "boilerplate", "instances")
FunnelRow = tuple[int, str, str, int, int, str | None, int]  # step, stage, unit, in, out, reason, count


def funnel_rows(
    db: duckdb.DuckDBPyConnection, *, documents_with_instances: int, characters_with_instances: int
) -> list[FunnelRow]:
    """The funnel of the table `listed` (made by `data.assignment.list_documents`).

    For each stage and unit (documents, characters) one row a reason, or one with reason null where nothing
    was lost.
    """
    rows: list[FunnelRow] = []
    ((documents, characters),) = db.execute(
        "select count(*), coalesce(sum(raw_characters), 0) from listed"
    ).fetchall()
    for step, stage in enumerate(STAGES[:-1]):
        earlier = ", ".join(f"'{name}'" for name in STAGES[: step + 1])
        size = "raw_characters" if stage == "read" else "characters"
        ((documents_out, characters_out, undecodable),) = db.execute(
            f"select count(*), coalesce(sum({size}), 0), coalesce(sum(undecodable), 0) from listed "
            f"where stage is null or stage not in ({earlier})"
        ).fetchall()
        causes = db.execute(
            f"select reason, count(*), sum({size}) from listed where stage = ? group by reason order by "
            "reason",
            [stage],
        ).fetchall()
        lost_documents = [(reason, count) for reason, count, _ in causes]
        lost_characters = [(reason, int(count)) for reason, _, count in causes if count]
        if stage == "clean":
            unseen = characters - characters_out - undecodable
            cleaned = [("markup_controls_spaces", unseen), ("undecodable", undecodable)]
            lost_characters = [(reason, int(count)) for reason, count in cleaned if count]
        for unit, before, after, lost in (
            ("documents", documents, documents_out, lost_documents),
            ("characters", characters, characters_out, lost_characters),
        ):
            rows += [(step, stage, unit, int(before), int(after), *cause) for cause in lost or [(None, 0)]]
        documents, characters = documents_out, characters_out
    for kind, count in db.execute(
        "select entry.key, sum(entry.value)::bigint from (select unnest(map_entries(placeholders)) as entry "
        "from listed) group by all order by all"
    ).fetchall():
        rows.append((STAGES.index("clean"), "clean", "placeholders", 0, 0, kind, count))
    for encoding, count in db.execute(
        "select encoding, count(*) from listed where encoding is not null group by all order by all"
    ).fetchall():
        rows.append((STAGES.index("read"), "read", "decoded_from", 0, 0, encoding, count))
    ((reported,),) = db.execute(
        "select count(*) from listed where stage is null and guard_hits > 0"
    ).fetchall()
    if reported:
        rows.append((STAGES.index("guard"), "guard", "kept", 0, 0, "in_evaluation_set", reported))
    unusable = (documents - documents_with_instances, characters - characters_with_instances)
    for unit, before, lost in zip(
        ("documents", "characters"), (documents, characters), unusable, strict=True
    ):
        cause = ("no_token_in_vocabulary", int(lost)) if lost else (None, 0)
        rows.append((len(STAGES) - 1, STAGES[-1], unit, int(before), int(before - lost), *cause))
    return rows


def write_index(
    db: duckdb.DuckDBPyConnection,
    root: Path,
    index_path: str,
    version: int,
    shards: Sequence[Shard],
    previous_index_path: str | None,
) -> None:
    """Write every document of a version, kept or dropped, as the file behind the catalog's view `documents`.

    Needs the table `listed`. Word counts come from the shards' documents files, the version a document was
    first seen in from the previous index.
    """
    documents = file_list([root / shard.documents_path for shard in shards])
    previous = (
        "select doc_id, min(first_version) as first_version from "
        f"read_parquet({file_list([root / previous_index_path])}) "
        "where dropped_stage is null group by doc_id"
        if previous_index_path
        else "select null::varchar as doc_id, null::integer as first_version where false"
    )
    with replacing(root / index_path) as temporary:
        copy_to(
            db,
            f"""
            with counted as (
                select doc_id, word_count as words from read_parquet({documents})),
            previous as ({previous})
            select doc_id, source_uri, characters as chars, sentences::bigint as sentences,
                case when stage is null then words end::bigint as words,
                coalesce(first_version, {int(version)})::integer as first_version,
                stage as dropped_stage, reason as dropped_reason, duplicate_of, guard_hits
            from listed left join counted using (doc_id) left join previous using (doc_id)
            order by position
            """,
            temporary,
        )
