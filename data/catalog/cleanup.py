"""Tidy a workspace: old versions, orphans, small shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from data.catalog.database import has_catalog, read_catalog, write_catalog
from data.catalog.runs import versions_read
from data.catalog.versions import (
    Version,
    add_compacted,
    old_versions,
    remove_versions,
    require_version,
    used_files,
    version_shards,
)
from data.errors import InputError
from data.files import TEMPORARY_SUFFIX
from data.instances import SHARD_CHARACTERS, Shard, read_shard, sum_counts, write_shard
from data.locks import corpus_lock, hold
from data.workspace import Workspace, check_name


@dataclass(frozen=True, slots=True)
class Collected:
    """Versions and files that garbage collection removed."""

    versions: tuple[tuple[str, int], ...]
    files: tuple[str, ...]  # relative to the workspace
    bytes: int


def collect_garbage(workspace: Workspace, *, keep: int | None = None, dry_run: bool = False) -> Collected:
    """Remove all but each corpus's `keep` newest versions, and every shard file that none of them uses.

    None keeps all, and those that a model was pretrained on are always kept. Raises InputError if a corpus is
    being refreshed.
    """
    if keep is not None and keep < 1:
        raise InputError(f"keep={keep}: it must be 1 or more, as the current version stays")
    with ExitStack() as locks:
        corpora = list_corpora(workspace)
        for corpus in corpora:
            # where there is no lock file, nobody refreshes the corpus, and a dry run leaves none
            if not dry_run or workspace.lock(f"refresh-{corpus}").exists():
                locks.enter_context(corpus_lock(workspace, corpus))
        with read_catalog(workspace) as db:
            trained_on = set().union(*versions_read(db).values())
            versions = [version for version in old_versions(db, keep) if version not in trained_on]
        # only of these corpora: one that began after they were listed is not locked
        orphans = _uncommitted_files(workspace, corpora, versions)
        size = sum(path.stat().st_size for path in orphans)
        names = tuple(workspace.relative(path) for path in orphans)
        if not dry_run:
            if versions:
                with write_catalog(workspace) as db:
                    remove_versions(db, versions)
            # after the catalog stopped naming them: a crash here leaves orphans for the next time
            for path in orphans:
                path.unlink()
            for corpus in corpora:
                shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    return Collected(tuple(versions), names, size)


def _uncommitted_files(
    workspace: Workspace, corpora: Sequence[str], without: Sequence[tuple[str, int]] = ()
) -> list[Path]:
    """List files of some corpora that no version uses, except the versions in `without`.

    Hold the lock of each of these corpora before removing them: a refresh's new files are among them.
    """
    rooms = (workspace.shards, workspace.documents, workspace.staging)
    folders = [room(corpus) for corpus in corpora for room in rooms]
    suffixes = (".parquet", TEMPORARY_SUFFIX)
    paths = [path for folder in folders for path in sorted(folder.glob("*"))]
    files = [path for path in paths if path.suffix in suffixes and path.is_file()]
    used: set[str] = set()
    if files and has_catalog(workspace):
        with read_catalog(workspace) as db:
            used = used_files(db, without)
    return [path for path in files if path.relative_to(workspace.root).as_posix() not in used]


def remove_corpus(workspace: Workspace, corpus: str) -> list[str]:
    """Remove a corpus with all its versions, and the share of documents that is not trained on for its sake.

    Models and reports made from it stay. Returns the runs that were pretrained on it. Raises InputError if
    there is no such corpus, or it is being refreshed or trained on.
    """
    _require_corpus(workspace, corpus)
    with sole_writer(workspace, corpus), ExitStack() as trainings:
        with read_catalog(workspace) as db:
            read = versions_read(db)
        runs = [run for run, versions in read.items() if corpus in dict(versions)]
        for run in runs:
            busy = f"{run} is being trained on corpus {corpus!r}: wait for it to end, or stop it first"
            trainings.enter_context(hold(workspace.lock(f"run-{run}"), busy))
        with write_catalog(workspace) as db:
            for table in ("corpora", "versions", "sources", "shards", "version_shards", "funnel"):
                db.execute(f"delete from {table} where corpus = ?", [corpus])
        for folder in (workspace.shards, workspace.documents, workspace.lexicons):
            shutil.rmtree(folder(corpus), ignore_errors=True)
    return runs


def _require_corpus(workspace: Workspace, corpus: str) -> None:
    """Raise InputError if there is no such corpus, before its lock would leave a file behind."""
    check_name(corpus, "corpus")
    with read_catalog(workspace) as db:
        require_version(db, corpus)


def list_corpora(workspace: Workspace) -> list[str]:
    """List the corpora in the catalog, and those that have files but no version yet."""
    with read_catalog(workspace) as db:
        names = {name for (name,) in db.execute("select corpus from corpora").fetchall()}
    for folder in (workspace.shards(""), workspace.documents(""), workspace.staging("")):
        for path in folder.glob("*"):
            with suppress(InputError):  # such as a disk's lost+found
                names.add(check_name(path.name, "corpus"))
    return sorted(names)


def compact(workspace: Workspace, corpus: str) -> Version | None:
    """Merge neighbouring shards of under half the usual size into a new version; None if there are none."""
    _require_corpus(workspace, corpus)
    with sole_writer(workspace, corpus):
        with read_catalog(workspace) as db:
            version = require_version(db, corpus)
            shards = version_shards(db, version)
        merged = [_merge(group, workspace, corpus) for group in _groups(shards)]
        if len(merged) == len(shards):
            return None
        new = replace(version, version=version.version + 1)
        with write_catalog(workspace) as db:
            add_compacted(db, version, new, merged)
    return new


def _groups(shards: Sequence[Shard]) -> list[list[Shard]]:
    groups: list[list[Shard]] = []
    size = 0
    for shard in shards:
        small = shard.characters < SHARD_CHARACTERS // 2
        if groups and small and size + shard.characters <= SHARD_CHARACTERS:
            groups[-1].append(shard)
            size += shard.characters
        else:
            groups.append([shard])
            size = shard.characters if small else SHARD_CHARACTERS
    return groups


def _merge(shards: Sequence[Shard], workspace: Workspace, corpus: str) -> Shard:
    if len(shards) == 1:
        return shards[0]
    instances = _concatenated([workspace.root / shard.path for shard in shards])
    documents = _concatenated([workspace.root / shard.documents_path for shard in shards])
    bars = zip_longest(*(shard.length_histogram for shard in shards), fillvalue=0)
    return Shard(
        *write_shard(instances, documents, workspace, corpus),
        length_histogram=tuple(map(sum, bars)),
        **sum_counts(shards),  # type: ignore[arg-type]
    )


def _concatenated(paths: Sequence[Path]) -> pa.Table:
    return pa.concat_tables(map(read_shard, paths)).combine_chunks()


@contextmanager
def sole_writer(
    workspace: Workspace, corpus: str, on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the `corpus_lock`. Remove unfinished and uncommitted files before, those of a killed refresh, and
    after, those of one that failed, perhaps because the disk is full.
    """
    with corpus_lock(workspace, corpus, on_wait):
        _tidy(workspace, corpus)
        try:
            yield
        finally:
            _tidy(workspace, corpus)


def _tidy(workspace: Workspace, corpus: str) -> None:
    shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    for path in _uncommitted_files(workspace, [corpus]):
        path.unlink(missing_ok=True)
