"""Versions of a corpus in the catalog, as a refresh, a compaction and garbage collection write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from data.errors import InputError
from data.instances import Shard


def newest_version(db: duckdb.DuckDBPyConnection, corpus: str) -> Version | None:
    """Return the current version of a corpus, or None if there is none."""
    rows = db.execute(
        """
        select corpus, version, recipe_hash, sop, tokenizer, max_seq_length, documents, instances, tokens,
            index_path, held_out_share, similar_words
        from versions join corpora using (corpus) where corpus = ? order by version desc limit 1
        """,
        [corpus],
    ).fetchall()
    return Version(*rows[0]) if rows else None


def require_version(db: duckdb.DuckDBPyConnection, corpus: str) -> Version:
    """Return the current version of a corpus; raise InputError listing the corpora if it has none."""
    version = newest_version(db, corpus)
    if version is None:
        names = [name for (name,) in db.execute("select corpus from corpora order by corpus").fetchall()]
        raise InputError(
            f"no corpus {corpus!r} in this workspace (there is: {', '.join(names) or 'none'}); "
            "make it with jixu refresh-corpus"
        )
    return version


def never_trained_share(db: duckdb.DuckDBPyConnection) -> float:
    """Return the share of documents that no run of the workspace trains on: the largest of its corpora's.

    It never shrinks, so that a document once held out is never trained on, in whichever corpus it comes.
    """
    ((share,),) = db.execute("select coalesce(max(held_out_share), 0) from corpora").fetchall()
    return share


def version_shards(db: duckdb.DuckDBPyConnection, version: Version) -> list[Shard]:
    """List the shards of a version in order."""
    rows = db.execute(
        """
        select path, sha256, documents_path, documents_sha256, instances, tokens, documents, characters,
            words, sentences, length_histogram
        from version_shards join shards using (corpus, path)
        where corpus = ? and version = ? order by position
        """,
        [version.corpus, version.version],
    ).fetchall()
    return [Shard(*[*row[:-1], tuple(row[-1])]) for row in rows]


def version_sources(db: duckdb.DuckDBPyConnection, version: Version) -> list[Source]:
    """List the source files of a version in order."""
    rows = db.execute(
        """
        select uri, size, sha256, listing_path from sources
        where corpus = ? and version = ? order by position
        """,
        [version.corpus, version.version],
    ).fetchall()
    return [Source(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Version:
    """A corpus version: an immutable list of shards."""

    corpus: str
    version: int
    recipe_hash: str
    sop: bool
    tokenizer: str
    max_seq_length: int
    documents: int
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


def add_version(
    db: duckdb.DuckDBPyConnection,
    version: Version,
    *,
    parent: int | None,
    recipe: Mapping[str, object],
    objective: str,
    vocab_size: int,
    sources: Sequence[Source],
    shards: Sequence[Shard],
    funnel: Sequence[tuple[int, str, str, int, int, str | None, int]],
) -> None:
    """Record a corpus version with its sources, shards and funnel (rows: step .. count)."""
    corpus, number = version.corpus, version.version
    db.execute(
        """
        insert or replace into corpora values
            (?, ?, ?, ?, ?, ?, coalesce((select created_at from corpora where corpus = ?), now()))
        """,
        [corpus, version.tokenizer, vocab_size, objective, version.max_seq_length]
        + [version.held_out_share, corpus],
    )
    totals = [sum(getattr(shard, name) for shard in shards) for name in ("characters", "words", "sentences")]
    db.execute(
        "insert into versions values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, now(), 'ready')",
        [corpus, number, parent, version.recipe_hash, json.dumps(recipe, ensure_ascii=False), version.sop]
        + [version.documents, *totals, version.instances, version.tokens]
        + [version.index_path, version.similar_words],
    )
    rows = [(corpus, number, i, s.uri, s.size, s.sha256, s.listing_path) for i, s in enumerate(sources)]
    _insert(db, "sources", rows)
    _add_shards(db, version, shards)
    _insert(db, "funnel", [(corpus, number, *row) for row in funnel])


def remove_versions(db: duckdb.DuckDBPyConnection, keep: int, *, dry_run: bool) -> list[tuple[str, int]]:
    """Remove all but each corpus's `keep` newest versions and those that were trained on; return which."""
    old = db.execute(
        """
        select corpus, version from versions
        qualify row_number() over (partition by corpus order by version desc) > ?
        except select corpus, version from pretraining_runs order by all
        """,
        [keep],
    ).fetchall()
    if not dry_run:
        for table in ("versions", "sources", "version_shards", "funnel"):
            for version in old:
                db.execute(f"delete from {table} where corpus = ? and version = ?", list(version))
        db.execute("delete from shards where path not in (select path from version_shards)")
    return old


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
    return {path for corpus, version, path in rows if (corpus, version) not in set(without)}


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
    corpus = version.corpus
    query = "select path, sha256, documents_sha256 from shards where corpus = ?"
    old = set(db.execute(query, [corpus]).fetchall())
    now = datetime.now(UTC)
    rows = [
        (s.path, corpus, s.sha256, s.documents_path, s.documents_sha256, s.instances, s.tokens, s.documents)
        + (s.characters, s.words, s.sentences, list(s.length_histogram), version.recipe_hash, now)
        for s in shards
        # another release of pyarrow writes the same content, and so the same name, in other bytes
        if (s.path, s.sha256, s.documents_sha256) not in old
    ]
    _insert(db, "shards", rows, "insert or replace")
    places = [(corpus, version.version, i, shard.path) for i, shard in enumerate(shards)]
    _insert(db, "version_shards", places)


def _insert(db: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple], verb: str = "insert") -> None:
    if rows:
        columns = {f"column_{i}": list(values) for i, values in enumerate(zip(*rows, strict=True))}
        db.register("inserted", pa.table(columns))
        db.execute(f"{verb} into {table} select * from inserted")
        db.unregister("inserted")
