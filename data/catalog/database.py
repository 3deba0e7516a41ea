"""The catalog: one DuckDB file that says what a workspace holds, since when, and made from what.

A writer works on a copy and renames it over the catalog, so a commit is one atomic step, a reader is never
locked out, and no open notebook can hold a writer up; a reader sees the state of the moment it opened the
file. Writers take turns by a lock file. Every query against these tables stands in this module or, where it
writes versions of a corpus, in `data.versions`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
from filelock import FileLock

from data.catalog.versions import used_files
from data.errors import InputError
from data.files import TEMPORARY_SUFFIX, replacing, sha256, write_bytes
from data.workspace import Workspace

CATALOG_VERSION = 3

SCHEMA = """
create table meta (catalog_version integer not null, root varchar not null);
create table corpora (
    corpus varchar primary key, tokenizer varchar not null, vocab_size integer not null,
    objective varchar not null, max_seq_length integer not null,
    created_at timestamptz not null default now());
create table versions (
    corpus varchar not null, version integer not null, parent integer, recipe_hash varchar not null,
    recipe json not null, sop boolean not null, documents bigint not null, characters bigint not null,
    words bigint not null, sentences bigint not null, instances bigint not null, tokens bigint not null,
    index_path varchar not null, similar_words varchar, created_at timestamptz not null default now(),
    status varchar not null, primary key (corpus, version));
create table sources (
    corpus varchar not null, version integer not null, position integer not null, uri varchar not null,
    size bigint not null, sha256 varchar not null, listing_path varchar not null,
    primary key (corpus, version, uri));
create table shards (
    path varchar primary key, corpus varchar not null, sha256 varchar not null,
    documents_path varchar not null, documents_sha256 varchar not null, instances bigint not null,
    tokens bigint not null, documents bigint not null, characters bigint not null, words bigint not null,
    sentences bigint not null, length_histogram integer[] not null, recipe_hash varchar not null,
    created_at timestamptz not null default now());
create table version_shards (
    corpus varchar not null, version integer not null, position integer not null, path varchar not null,
    primary key (corpus, version, position));
create table funnel (
    corpus varchar not null, version integer not null, step integer not null, stage varchar not null,
    unit varchar not null, "in" bigint not null, "out" bigint not null, reason varchar,
    count bigint not null);
create table pretraining_runs (
    run varchar primary key, corpus varchar not null, version integer not null, init varchar not null,
    settings json not null, status varchar not null, steps integer not null, tokens bigint not null,
    metrics json, created_at timestamptz not null default now(), finished_at timestamptz);
create table checkpoints (
    run varchar not null, step integer not null, path varchar not null, sha256 varchar not null,
    mlm_loss double, mlm_accuracy double, sop_accuracy double,
    created_at timestamptz not null default now(), primary key (run, step));
create table evaluations (
    run varchar not null, task varchar not null, model varchar not null, seed integer not null,
    learning_rate double not null, best_epoch integer not null, split varchar not null,
    metric varchar not null, score double not null, seconds double not null,
    created_at timestamptz not null default now(), primary key (run, model, seed, split, metric));
"""

# views of an empty workspace, so that every name of the catalog can be queried from the first day
_EMPTY_VIEWS = {
    "documents": "null::varchar as doc_id, null::varchar as source_uri, null::bigint as chars, "
    "null::bigint as sentences, null::bigint as words, null::integer as first_version, "
    "null::varchar as dropped_stage, null::varchar as dropped_reason, null::varchar as duplicate_of, "
    "null::integer as guard_hits",
    "document_texts": "null::varchar as doc_id, null::varchar as source_uri, null::varchar as text, "
    "null::varchar[][] as words, null::bigint as word_count",
    "instances": "null::ubigint as instance_id, null::varchar as doc_id, null::usmallint[] as input_ids, "
    "null::usmallint as segment_b_start, null::varchar as word_starts, null::utinyint as sop_label, "
    "null::usmallint[] as masked_positions, null::usmallint[] as masked_input_ids, null::usmallint[] as "
    "masked_labels",
}


@contextmanager
def read_catalog(workspace: Workspace) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection. Raises InputError where there is no catalog, or one of a newer jixu."""
    if not workspace.catalog.is_file():
        raise InputError(f"no catalog in {workspace.root}: jixu refresh-corpus makes one")
    with duckdb.connect(str(workspace.catalog), read_only=True) as db:
        _check_version(db, workspace)
        yield db


@contextmanager
def write_catalog(workspace: Workspace) -> Iterator[duckdb.DuckDBPyConnection]:
    """One transaction: takes effect as a whole when the block ends, not at all when it raises."""
    workspace.lock("catalog").parent.mkdir(parents=True, exist_ok=True)
    with FileLock(workspace.lock("catalog")), replacing(workspace.catalog) as temporary:
        for left in workspace.root.glob(f"{workspace.catalog.name}.*{TEMPORARY_SUFFIX}*"):
            left.unlink()  # by a writer that was killed
        is_new = not workspace.catalog.is_file()
        if not is_new:
            shutil.copyfile(workspace.catalog, temporary)
        with duckdb.connect(str(temporary)) as db:
            if is_new:
                db.execute(SCHEMA)
                db.execute("insert into meta values (?, ?)", [CATALOG_VERSION, ""])
            _check_version(db, workspace)
            db.execute("begin")
            yield db
            _refresh_views(db, workspace)
            db.execute("commit; checkpoint")


def _check_version(db: duckdb.DuckDBPyConnection, workspace: Workspace) -> None:
    ((version,),) = db.execute("select catalog_version from meta").fetchall()
    if version > CATALOG_VERSION:
        raise InputError(
            f"{workspace.catalog} was written by a newer jixu (catalog {version}, this one knows "
            f"{CATALOG_VERSION}): "
            "upgrade jixu or use another workspace"
        )
    if version < CATALOG_VERSION:
        raise InputError(
            f"{workspace.catalog} was written by an older jixu (catalog {version}, this one writes "
            f"{CATALOG_VERSION}): refresh the corpora into a new workspace"
        )


def _refresh_views(db: duckdb.DuckDBPyConnection, workspace: Workspace) -> None:
    """Point the views at the files of each corpus's newest version, by absolute path, and corpora at the
    vocabularies of a workspace that was moved.
    """
    root = workspace.root.resolve()
    db.execute(
        "update corpora set tokenizer = ? || substr(tokenizer, len(root) + 1) from meta "
        "where root != '' and starts_with(tokenizer, root || '/')",
        [str(root)],
    )
    db.execute("update meta set root = ?", [str(root)])
    newest = db.execute(
        "select corpus, max(version), max_by(index_path, version) from versions group by corpus order by "
        "corpus"
    ).fetchall()
    parts: dict[str, list[str]] = {name: [] for name in _EMPTY_VIEWS}
    for corpus, version, index_path in newest:
        files = db.execute(
            "select path, documents_path from version_shards join shards using (corpus, path) "
            "where corpus = ? and version = ? order by position",
            [corpus, version],
        ).fetchall()
        named = f"select {_quoted(corpus)} as corpus, {version} as version, *"
        paths = {
            "documents": [index_path],
            "instances": [f[0] for f in files],
            "document_texts": [f[1] for f in files],
        }
        for view, relative in paths.items():
            if relative:
                listed = ", ".join(_quoted(str(root / path)) for path in relative)
                select = f"{named} from read_parquet([{listed}])"
                if _is_readable(select):
                    parts[view].append(select)
    for view, selects in parts.items():
        empty = f"select null::varchar as corpus, null::integer as version, {_EMPTY_VIEWS[view]} where false"
        db.execute(f"create or replace view {view} as {' union all by name '.join(selects) or empty}")


def _is_readable(select: str) -> bool:
    """Whether a view may hold it: a corpus whose files are gone must not keep others from being written."""
    try:
        # beside the writer's transaction, which an error would abort
        with duckdb.connect() as db:
            db.execute(f"{select} limit 0")
    except (duckdb.IOException, duckdb.InvalidInputException):
        return False
    return True


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def uncommitted_files(
    workspace: Workspace, corpora: Sequence[str], without: Sequence[tuple[str, int]] = ()
) -> list[Path]:
    """Shards and documents of some corpora that no version uses, those of some versions left out.

    Whoever removes them holds the lock of each of these corpora: a refresh's new files are among them.
    """
    folders = [folder(corpus) for corpus in corpora for folder in (workspace.shards, workspace.documents)]
    files = [path for folder in folders for path in sorted(folder.glob("*")) if _is_data(path)]
    used: set[str] = set()
    if files and workspace.catalog.is_file():
        with read_catalog(workspace) as db:
            used = used_files(db, without)
    return [path for path in files if path.relative_to(workspace.root).as_posix() not in used]


def _is_data(path: Path) -> bool:
    return path.suffix in (".parquet", TEMPORARY_SUFFIX) and path.is_file()


def is_moved(db: duckdb.DuckDBPyConnection, workspace: Workspace) -> bool:
    """Whether the workspace was moved or copied since its views were made."""
    return db.execute("select root from meta").fetchall()[0][0] != str(workspace.root.resolve())


def bring_in_tokenizers(workspace: Workspace) -> None:
    """Copy vocabularies of corpora that lie outside the workspace into it, so that it can be carried away."""
    with read_catalog(workspace) as db:
        named = db.execute("select distinct tokenizer from corpora").fetchall()
    folder = workspace.tokenizers.resolve()
    outside = [path for (name,) in named if not (path := Path(name)).is_relative_to(folder)]
    copies = []
    for path in filter(Path.is_file, outside):
        copy = folder / f"{path.stem}-{sha256(path)[:8]}" / path.name
        if not copy.is_file():
            write_bytes(copy, path.read_bytes())
        copies.append([str(copy), str(path)])
    if copies:
        with write_catalog(workspace) as db:
            db.executemany("update corpora set tokenizer = ? where tokenizer = ?", copies)


def heal_views(workspace: Workspace) -> None:
    """Point the views at the workspace's present place, if it was moved."""
    with read_catalog(workspace) as db:
        moved = is_moved(db, workspace)
    if moved:
        with write_catalog(workspace):
            pass
