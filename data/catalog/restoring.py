"""Records of versions and runs in files, from which a lost catalog is made again."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import duckdb

from data.catalog.database import write_catalog
from data.catalog.versions import Version, insert
from data.files import write_text
from data.workspace import Workspace

_OF_VERSION = "where corpus = $corpus and version = $version"
_ROWS = {
    "corpora": "from corpora where corpus = $corpus",
    "shards": f"from shards where path in (select path from version_shards {_OF_VERSION})",
    **{table: f"from {table} {_OF_VERSION}" for table in ("versions", "sources", "version_shards", "funnel")},
}
_RUN_ROWS = {
    table: f"from {table} where run = $run" for table in ("pretraining_runs", "checkpoints", "evaluations")
}
Rows = dict[str, list[dict[str, object]]]  # by table, each by column
_PATHS = ("path", "documents_path", "listing_path", "index_path", "similar_words")


def write_record(db: duckdb.DuckDBPyConnection, workspace: Workspace, version: Version) -> None:
    """Write a version's rows of the catalog to a file, before they are committed."""
    key = {"corpus": version.corpus, "version": version.version}
    _write(db, workspace.record(version.corpus, version.version), _ROWS, key)


def write_run_record(db: duckdb.DuckDBPyConnection, workspace: Workspace, run: str) -> None:
    """Write the rows of a pretraining run and its checkpoints, or of an evaluation, to a file."""
    _write(db, workspace.run_record(run), _RUN_ROWS, {"run": run})


def _write(
    db: duckdb.DuckDBPyConnection, path: Path, queries: Mapping[str, str], key: Mapping[str, object]
) -> None:
    """Write what the queries by table find, a line of JSON for each row."""
    lines = []
    for table, query in queries.items():
        named = {name: value for name, value in key.items() if f"${name}" in query}
        rows = db.execute(f"select to_json(rows)::varchar from ({query}) rows", named).fetchall()
        lines += [f'["{table}", {row}]\n' for (row,) in rows]
    write_text(path, "".join(lines))


def restore(workspace: Workspace) -> list[str]:
    """Make a new catalog of the versions whose files are all there, and of all runs; return them.

    A damaged catalog stays beside it as catalog.damaged.
    """
    if workspace.catalog.is_file():
        os.replace(workspace.catalog, workspace.catalog.with_suffix(".damaged"))
    restored = []
    with write_catalog(workspace) as db:
        for path in workspace.records():
            rows = _read(path)
            named = [row.get(column) for table in rows.values() for row in table for column in _PATHS]
            if all((workspace.root / str(name)).is_file() for name in named if name):
                _insert(db, rows)
                restored.append(f"{path.parent.name} {path.stem.replace('-', ' ')}")
            else:  # its share of never-trained documents stays
                _insert(db, {"corpora": rows["corpora"]})
        for path in sorted(workspace.run_record("").parent.glob("*.json")):
            rows = _read(path)
            there = [row for row in rows["checkpoints"] if (workspace.root / str(row["path"])).is_dir()]
            _insert(db, {**rows, "checkpoints": there})
            restored.append(f"run {path.stem}")
    return restored


def _read(path: Path) -> Rows:
    rows: Rows = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        table, row = json.loads(line)
        texts = {
            name: json.dumps(one, ensure_ascii=False) for name, one in row.items() if isinstance(one, dict)
        }
        rows[table].append(row | texts)
    return rows


def _insert(db: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    for table, those in rows.items():
        # versions share shards and their corpus, the newest one's record comes first
        insert(db, table, those, "insert" if table == "funnel" else "insert or ignore")
