"""Versions of a corpus in the catalog, as a refresh, a compaction and garbage collection write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from data.errors import InputError
from data.instances import Shard


@dataclass(frozen=True, slots=True)
class Version:
    """A corpus version: an immutable list of shards."""

    corpus: str
    version: int
    recipe_hash: str
    sop: bool
    tokenizer: str
    documents: int
    characters: int
    words: int
    sentences: int
    instances: int
    tokens: int
    index_path: str
    held_out_share: float  # of the documents, fixed by the corpus's first version
    similar_words: str | None = None  # table of replacements for the objective macbert


@dataclass(frozen=True, slots=True)
class Source:
    """A source file that a version was read from."""

    uri: str
    size: int
    sha256: str
    listing_path: str


class FunnelRow(NamedTuple):
    """How much went into and out of a stage of a version, and how much of it was lost for a reason."""

    step: int
    stage: str
    unit: str
    before: int
    after: int
    reason: str | None
    amount: int


def columns_of(record: type[Any]) -> str:
    """List the columns that the fields of a record are named after."""
    return ", ".join(field.name for field in fields(record))


def insert(
    db: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, object]], verb: str = "insert"
) -> None:
    """Add rows, given by column; columns that they lack get their defaults."""
    if rows:
        db.register("inserted", pa.Table.from_pylist(list(rows)))
        db.execute(f"{verb} into {table} by name from inserted")
        db.unregister("inserted")


def newest_version(db: duckdb.DuckDBPyConnection, corpus: str, at_most: int | None = None) -> Version | None:
    """Return the current version of a corpus, or the last one up to a number; None if there is none."""
    query = f"""
        select {columns_of(Version)} from versions join made_with using (corpus, version)
        where corpus = ? and version <= coalesce(?, version) order by version desc limit 1
        """
    rows = db.execute(query, [corpus, at_most]).fetchall()
    return Version(*rows[0]) if rows else None


def require_version(db: duckdb.DuckDBPyConnection, corpus: str, at_most: int | None = None) -> Version:
    """Return the current version of a corpus, or the last one up to a number.

    Raises InputError listing the corpora if there is none.
    """
    version = newest_version(db, corpus, at_most)
    if version is None:
        names = [name for (name,) in db.execute("select corpus from corpora order by corpus").fetchall()]
        if corpus in names:
            raise InputError(f"no version of {corpus} up to {at_most} is left: jixu corpus gc removed it")
        raise InputError(
            f"no corpus {corpus!r} in this workspace (there is: {', '.join(names) or 'none'}); "
            "make it with jixu refresh-corpus"
        )
    return version


def never_trained_share(db: duckdb.DuckDBPyConnection) -> float:
    """Return the share of documents that no run of the workspace trains on: the largest of its corpora's.

    It never shrinks unless a corpus is removed, so that a document once held out is never trained on, in
    whichever corpus it comes.
    """
    ((share,),) = db.execute("select coalesce(max(held_out_share), 0) from corpora").fetchall()
    return share


def version_shards(db: duckdb.DuckDBPyConnection, version: Version) -> list[Shard]:
    """List the shards of a version in order."""
    query = f"""
        select {columns_of(Shard)} from version_shards join shards using (corpus, path)
        where corpus = ? and version = ? order by position
        """
    rows = db.execute(query, [version.corpus, version.version]).fetchall()
    return [Shard(*[*row[:-1], tuple(row[-1])]) for row in rows]


def version_sources(db: duckdb.DuckDBPyConnection, version: Version) -> list[Source]:
    """List the source files of a version in order."""
    query = f"select {columns_of(Source)} from sources where corpus = ? and version = ? order by position"
    return [Source(*row) for row in db.execute(query, [version.corpus, version.version]).fetchall()]


def version_recipe(db: duckdb.DuckDBPyConnection, corpus: str, version: int) -> dict[str, object]:
    """Return the recipe of a version."""
    query = "select recipe from versions where corpus = ? and version = ?"
    return json.loads(db.execute(query, [corpus, version]).fetchall()[0][0])


def add_version(
    db: duckdb.DuckDBPyConnection,
    version: Version,
    *,
    recipe: Mapping[str, object],
    sources: Sequence[Source],
    shards: Sequence[Shard],
    funnel: Sequence[FunnelRow],
) -> None:
    """Record a corpus version that follows the current one, with its sources, shards and funnel."""
    values, key = asdict(version), {"corpus": version.corpus, "version": version.version}
    of_corpus = {name: values[name] for name in ("corpus", "tokenizer", "held_out_share")}
    of_recipe = {name: recipe[name] for name in ("objective", "vocab_size", "max_seq_length")}
    insert(db, "corpora", [of_corpus | of_recipe], "insert or replace")
    row = {name: value for name, value in values.items() if name not in of_corpus} | key
    # of the corpus at this version: its next one may have another vocabulary
    kept = json.dumps({**recipe, "tokenizer": version.tokenizer}, ensure_ascii=False)
    row |= {"parent": version.version - 1 or None, "recipe": kept, "status": "ready"}
    insert(db, "versions", [row])
    insert(db, "sources", [{**key, "position": n, **asdict(source)} for n, source in enumerate(sources)])
    _add_shards(db, version, shards)
    columns = ("step", "stage", "unit", "in", "out", "reason", "count")
    insert(db, "funnel", [{**key, **dict(zip(columns, one, strict=True))} for one in funnel])


def old_versions(db: duckdb.DuckDBPyConnection, keep: int | None) -> list[tuple[str, int]]:
    """List all but each corpus's `keep` newest versions; None: list none."""
    return db.execute(
        """
        select corpus, version from versions
        qualify row_number() over (partition by corpus order by version desc) > ? order by all
        """,
        [keep],
    ).fetchall()


def remove_versions(db: duckdb.DuckDBPyConnection, versions: Sequence[tuple[str, int]]) -> None:
    """Remove versions, and the shards that no other one has."""
    for table in ("versions", "sources", "version_shards", "funnel"):
        db.executemany(f"delete from {table} where corpus = ? and version = ?", versions)
    db.execute("delete from shards where path not in (select path from version_shards)")


def used_files(db: duckdb.DuckDBPyConnection, without: Sequence[tuple[str, int]]) -> set[str]:
    """List the workspace's files that versions use, except the versions in `without`."""
    rows = db.execute(
        """
        select corpus, version, path from version_shards
        union all select corpus, version, documents_path from version_shards join shards using (corpus, path)
        union all select corpus, version, listing_path from sources
        union all select corpus, version, index_path from versions
        union all select corpus, version, similar_words from versions where similar_words is not null
        """
    ).fetchall()
    left_out = set(without)
    return {path for corpus, version, path in rows if (corpus, version) not in left_out}


def add_compacted(db: duckdb.DuckDBPyConnection, old: Version, new: Version, shards: Sequence[Shard]) -> None:
    """Record a version that differs from an older one only in how its instances are divided into shards."""
    corpus = old.corpus
    db.execute(
        """
        insert into versions select * replace (? as version, ? as parent, now() as created_at)
        from versions where corpus = ? and version = ?
        """,
        [new.version, old.version, corpus, old.version],
    )
    for table in ("sources", "funnel"):
        copied = f"select * replace (? as version) from {table} where corpus = ? and version = ?"
        db.execute(f"insert into {table} {copied}", [new.version, corpus, old.version])
    _add_shards(db, new, shards)


def _add_shards(db: duckdb.DuckDBPyConnection, version: Version, shards: Sequence[Shard]) -> None:
    corpus, now = version.corpus, datetime.now(UTC)
    query = "select path, sha256, documents_sha256 from shards where corpus = ?"
    old = set(db.execute(query, [corpus]).fetchall())
    rows = [
        {"corpus": corpus, **asdict(shard), "recipe_hash": version.recipe_hash, "created_at": now}
        for shard in shards
        # another release of pyarrow writes the same content, and so the same name, in other bytes
        if (shard.path, shard.sha256, shard.documents_sha256) not in old
    ]
    insert(db, "shards", rows, "insert or replace")
    key = {"corpus": corpus, "version": version.version}
    insert(db, "version_shards", [{**key, "position": n, "path": one.path} for n, one in enumerate(shards)])
