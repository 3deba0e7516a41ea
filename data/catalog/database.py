"""The catalog: one DuckDB file that records what a workspace holds, since when, and from which sources.

A writer works on a copy and renames it over the catalog: a commit is one atomic step, readers are never
locked out, and an open notebook never blocks a writer. A reader sees the state at the time it opened the
file, and writes nothing: a workspace may be read-only, and lie anywhere, since the paths in the tables are
relative to it. Writers take turns with a lock file. Only this room queries the tables.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb
from filelock import FileLock

from data.errors import InputError
from data.files import TEMPORARY_SUFFIX, make_folder, replacing, sha256, write_bytes
from data.tokenization import TOKENIZER_CONFIG
from data.workspace import Workspace

CATALOG_VERSION = 4

SCHEMA = """
create table meta (catalog_version integer not null);
create table corpora (
    corpus varchar primary key, tokenizer varchar not null, vocab_size integer not null,
    objective varchar not null, max_seq_length integer not null, held_out_share double not null,
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

# columns of the views, so that they can be queried from the first day
_VIEWS = {
    "documents": """
        doc_id varchar, source_uri varchar, chars bigint, sentences bigint, words bigint,
        first_version integer, dropped_stage varchar, dropped_reason varchar, duplicate_of varchar,
        guard_hits integer, perplexity double, language varchar, has_order boolean, beginning varchar""",
    "document_texts": """
        doc_id varchar, source_uri varchar, text varchar, words varchar[][], word_count bigint""",
    "instances": """
        instance_id ubigint, doc_id varchar, side uinteger, input_ids usmallint[], segment_b_start usmallint,
        word_starts varchar, sop_label utinyint, masked_positions usmallint[],
        masked_input_ids usmallint[], masked_labels usmallint[]""",
}


# in SQL, the file that a document came from, without its place in it, such as "#line=3"
SOURCE_FILE = r"regexp_replace(source_uri, '#[^/.]*$', '')"


class CatalogLost(InputError):
    """A catalog that is gone or damaged, but has a copy."""

    def __init__(self, what: str):
        super().__init__(f"{what}: jixu doctor --fix restores it from its copy in backup/")


@contextmanager
def intact(workspace: Workspace) -> Iterator[None]:
    """Raise CatalogLost for DuckDB's errors in the block, InputError if the catalog is open for writing."""
    try:
        yield
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        if "onflict" in reason:  # "Conflicting lock" of another process, "file handle conflict" in this one
            raise InputError(
                f"{workspace.catalog} is open for writing elsewhere: close it there, and open it read-only "
                f"({reason})"
            ) from None
        if any(os.strerror(number) in reason for number in (errno.EACCES, errno.EIO, errno.EMFILE)):
            raise  # it may be whole
        raise CatalogLost(f"{workspace.catalog} is damaged ({reason})") from None


def read_catalog(workspace: Workspace) -> duckdb.DuckDBPyConnection:
    """Connect for reading, to a database in memory whose views are the catalog's tables; use it with `with`.

    `made_with` has a row of `corpora` for every version. Raises InputError if there is no catalog, or it is
    damaged or of another version of jixu.
    """
    if not has_catalog(workspace):
        raise InputError(f"no catalog in {workspace.root}: jixu refresh-corpus makes one")
    db = duckdb.connect()
    ((zone,),) = db.execute("select current_setting('timezone')").fetchall()
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):  # such as GMT+8, of which Python could not read a time
        db.execute("set timezone = 'UTC'")
    with intact(workspace):
        db.execute(f"attach {quoted(str(workspace.catalog))} as stored (read_only)")
        _check_version(db, workspace, "stored.meta")
        tables = db.execute("select table_name from duckdb_tables() where database_name = 'stored'")
    # views in memory, unlike temporary ones, are seen by every cursor
    for name in (quoted(table, '"') for (table,) in tables.fetchall()):
        db.execute(f"create view {name} as from stored.{name}")
    folder = quoted(f"{workspace.root.resolve()}/")
    db.execute(
        f"""
        create view made_with as
        select made.* replace (
            if(starts_with(path, '/'), '', {folder}) || path as tokenizer,
            coalesce((recipe ->> '$.vocab_size')::integer, vocab_size) as vocab_size,
            coalesce(recipe ->> '$.objective', objective) as objective,
            coalesce((recipe ->> '$.max_seq_length')::integer, max_seq_length) as max_seq_length), version
        from versions join stored.corpora made using (corpus),
            lateral (select coalesce(recipe ->> '$.tokenizer', tokenizer) as path);
        create or replace view corpora as
        select * exclude (version) from made_with qualify version = max(version) over (partition by corpus)
        """
    )
    return db


def has_catalog(workspace: Workspace) -> bool:
    """Whether there is a catalog. Raises CatalogLost if there was one, InputError where none can be."""
    if "?" in str(workspace.catalog.resolve()):
        raise InputError(f"workspace {workspace.root}: DuckDB opens no file there, as its path has a ?")
    if not workspace.catalog.is_file() and workspace.catalog_copy.is_file():
        raise CatalogLost(f"{workspace.catalog} is gone")
    return workspace.catalog.is_file()


def read_everything(db: duckdb.DuckDBPyConnection, workspace: Workspace) -> None:
    """Read every row of the catalog, whose blocks have checksums. Raises CatalogLost where one is damaged."""
    with intact(workspace):
        # no views, which anyone may have put into a catalog that was passed on
        names = db.execute("select database_name, table_name from duckdb_tables()").fetchall()
        for table in (".".join(quoted(part, '"') for part in name) for name in names):
            db.execute(f"select bit_xor(hash(rows)) from {table} rows").fetchall()


@contextmanager
def write_catalog(workspace: Workspace) -> Iterator[duckdb.DuckDBPyConnection]:
    """Run one transaction: it takes effect when the block ends, and not at all if it raises."""
    make_folder(workspace.lock("catalog").parent)
    with FileLock(workspace.lock("catalog")), replacing(workspace.catalog) as temporary:
        for path in (workspace.catalog, workspace.catalog_copy):
            for left in path.parent.glob(f"{path.name}.*{TEMPORARY_SUFFIX}*"):
                left.unlink()  # by a killed writer
        if not has_catalog(workspace):
            _make_catalog(workspace)
        shutil.copyfile(workspace.catalog, temporary)
        with intact(workspace):
            db = duckdb.connect(str(temporary))
            _check_version(db, workspace, "meta")
        with db:
            db.execute("begin")
            yield db
            db.execute("commit; checkpoint")
            read_everything(db, workspace)  # its copy must be whole
        with replacing(workspace.catalog_copy) as copy:
            shutil.copyfile(temporary, copy)


def _make_catalog(workspace: Workspace) -> None:
    """Write an empty catalog: of a copy alone, as a kill between two renames would leave it, it was lost."""
    with (
        replacing(workspace.catalog) as temporary,
        # by default a block, and so a column of a few rows, takes 16 times as many bytes
        duckdb.connect(str(temporary), config={"default_block_size": 1 << 14}) as db,
    ):
        db.execute(SCHEMA)
        db.execute("insert into meta values (?)", [CATALOG_VERSION])


def _check_version(db: duckdb.DuckDBPyConnection, workspace: Workspace, table: str) -> None:
    ((version,),) = db.execute(f"select catalog_version from {table}").fetchall()
    if version > CATALOG_VERSION:
        raise InputError(
            f"{workspace.catalog} was written by a newer jixu (catalog {version}, this one knows "
            f"{CATALOG_VERSION}): upgrade jixu or use another workspace"
        )
    if version < CATALOG_VERSION:
        raise InputError(
            f"{workspace.catalog} was written by an older jixu (catalog {version}, this one writes "
            f"{CATALOG_VERSION}): refresh the corpora into a new workspace"
        )


_NEWEST_FILES = """
with newest as (select corpus, max(version) as version from versions group by corpus),
used as (
    select corpus, version, position, path, documents_path
    from newest join version_shards using (corpus, version) join shards using (corpus, path))
select 'documents', corpus, version, [index_path] from versions join newest using (corpus, version)
union all
select 'instances', corpus, version, list(path order by position) from used group by all
union all
select 'document_texts', corpus, version, list(documents_path order by position) from used group by all
order by all
"""


def create_views(db: duckdb.DuckDBPyConnection, workspace: Workspace) -> set[str]:
    """Create the views of the files of each corpus's newest version; return the corpora that they lack, as
    files of theirs are gone or damaged.
    """
    root = workspace.root.resolve()
    db.execute("create schema empty")
    # columns that an older jixu did not write are there too, without a value
    parts, lost = {name: [f"from empty.{name}"] for name in _VIEWS}, set()
    for view, corpus, version, paths in db.execute(_NEWEST_FILES).fetchall():
        labels = f"{quoted(corpus)} as corpus, {version} as version"
        select = f"select {labels}, * from {parquet(root / path for path in paths)}"
        try:
            db.execute(f"{select} limit 0")
            parts[view].append(select)
        except (duckdb.IOException, duckdb.InvalidInputException):
            lost.add(corpus)  # it must not hide the others
    for view, selects in parts.items():
        db.execute(f"create table empty.{view} (corpus varchar, version integer, {_VIEWS[view]})")
        db.execute(f"create view {view} as {' union all by name '.join(selects)}")
    return lost


def quoted(text: str, mark: str = "'") -> str:
    """Quote a text as an SQL literal, or with double quotes as a name."""
    return mark + text.replace(mark, 2 * mark) + mark


def parquet(paths: Iterable[Path], options: str = "") -> str:
    """Write in SQL the rows of some Parquet files, in order; their paths are no patterns, and no columns."""
    files = ", ".join(quoted(glob.escape(str(path))) for path in paths)
    return f"read_parquet([{files}], hive_partitioning = false{options and f', {options}'})"


def bring_in_tokenizers(workspace: Workspace) -> None:
    """Copy vocabularies from outside the workspace into it, and their configs, so that it can be moved to
    another machine.
    """
    stored = "select recipe ->> '$.tokenizer' from versions union select tokenizer from stored.corpora"
    with read_catalog(workspace) as db:
        vocabularies = [name for (name,) in db.execute(stored).fetchall() if name]
    copies = []
    for name in vocabularies:
        path = workspace.root / name
        if path.resolve().is_relative_to(workspace.tokenizers.resolve()) or not path.is_file():
            continue
        names = dict.fromkeys((path.name, TOKENIZER_CONFIG, "tokenizer.json"))  # it is read with the others
        files = [file for file in map(path.with_name, names) if file.is_file()]
        digest = hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()
        copy = workspace.tokenizers / f"{path.stem}-{digest[:8]}"
        for file in files:
            write_bytes(copy / file.name, file.read_bytes())
        copies.append([workspace.relative(copy / path.name), name])
    if copies:
        with write_catalog(workspace) as db:
            db.executemany("update corpora set tokenizer = ? where tokenizer = ?", copies)
            patch = "recipe = json_merge_patch(recipe, json_object('tokenizer', ?))"
            db.executemany(f"update versions set {patch} where recipe ->> '$.tokenizer' = ?", copies)
