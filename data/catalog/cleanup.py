"""Check a workspace against its catalog, and tidy it: old versions, orphans, small shards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog.database import read_catalog, uncommitted_files, write_catalog
from data.catalog.versions import (
    Version,
    add_compacted,
    newest_version,
    remove_versions,
    require_version,
    used_files,
    version_shards,
)
from data.errors import InputError
from data.files import sha256
from data.instances import SHARD_CHARACTERS, Shard, table_digest, verify, write_table
from data.locks import corpus_lock
from data.workspace import Workspace

KEEP_ALL = 10**9  # versions


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a version that is missing, or differs from what was committed."""

    corpus: str
    path: str  # relative to the workspace
    is_gone: bool


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a workspace's files."""

    files: int  # used by versions
    damaged: tuple[DamagedFile, ...]
    orphans: tuple[str, ...]  # unused or half-written shard files; none on a read-only disk
    orphan_bytes: int


def examine(workspace: Workspace) -> Health:
    """Read every file that a version uses and compare its sha256.

    Raises InputError if there is no catalog of this version of jixu, or a corpus is being refreshed.
    """
    with read_catalog(workspace) as db:
        query = "select path, sha256 from shards union select documents_path, documents_sha256 from shards"
        sums = dict(db.execute(query).fetchall())
        used = sorted(used_files(db, []))
    damaged = []
    for path in used:
        file = workspace.root / path
        # listings and indexes have no checksum: they are made from files that do
        is_whole = verify(file, sums[path]) if path in sums else file.is_file()
        if not is_whole:
            damaged.append(DamagedFile(path.split("/")[1], path, not file.is_file()))
    # a running refresh has files that no version uses yet, and a read-only disk has no lock to exclude one
    if not os.access(workspace.root, os.W_OK):
        return Health(len(used), tuple(damaged), (), 0)
    garbage = collect_garbage(workspace, keep=KEEP_ALL, dry_run=True)
    return Health(len(used), tuple(damaged), garbage.files, garbage.bytes)


def remove_orphans(workspace: Workspace) -> int:
    """Remove files that no version uses; return their number."""
    return len(collect_garbage(workspace, keep=KEEP_ALL).files)


def mark_for_rebuilding(workspace: Workspace, corpora: Sequence[str]) -> None:
    """Make the next refresh of each corpus rebuild every shard from its sources, as for a new recipe."""
    with write_catalog(workspace) as db:
        for corpus in corpora:
            if version := newest_version(db, corpus):
                query = "update versions set recipe_hash = 'damaged' where corpus = ? and version = ?"
                db.execute(query, [corpus, version.version])


@dataclass(frozen=True, slots=True)
class Collected:
    """Versions and files that garbage collection removed."""

    versions: tuple[tuple[str, int], ...]
    files: tuple[str, ...]  # relative to the workspace
    bytes: int


def collect_garbage(workspace: Workspace, *, keep: int, dry_run: bool = False) -> Collected:
    """Remove all but each corpus's `keep` newest versions, and every shard file that none of them uses.

    Versions that a model was pretrained on are kept. Raises InputError if a corpus is being refreshed.
    """
    if keep < 1:
        raise InputError(f"keep={keep}: at least the current version stays")
    with ExitStack() as locks:
        corpora = list_corpora(workspace)
        for corpus in corpora:
            locks.enter_context(corpus_lock(workspace, corpus))
        with read_catalog(workspace) as db:
            versions = remove_versions(db, keep, dry_run=True)
        # only of these corpora: one that began after they were listed is not locked
        orphans = uncommitted_files(workspace, corpora, versions)
        size = sum(path.stat().st_size for path in orphans)
        names = tuple(workspace.relative(path) for path in orphans)
        if not dry_run:
            if versions:
                with write_catalog(workspace) as db:
                    remove_versions(db, keep, dry_run=False)
            # after the catalog stopped naming them: a crash here leaves orphans for the next time
            for path in orphans:
                path.unlink()
            for corpus in corpora:
                shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    return Collected(tuple(versions), names, size)


def list_corpora(workspace: Workspace) -> list[str]:
    """List the corpora in the catalog, and those that have files but no version yet."""
    with read_catalog(workspace) as db:
        names = {name for (name,) in db.execute("select corpus from corpora").fetchall()}
    folders = (workspace.shards(""), workspace.documents(""), workspace.staging(""))
    return sorted(names | {path.name for root in folders if root.is_dir() for path in root.iterdir()})


def compact(workspace: Workspace, corpus: str, *, characters: int = SHARD_CHARACTERS) -> Version | None:
    """Merge neighbouring shards of under half of `characters` into a new version; None if there are none."""
    with locked(workspace, corpus):
        with read_catalog(workspace) as db:
            version = require_version(db, corpus)
            shards = version_shards(db, version)
        merged = [_merge(group, workspace, corpus) for group in _groups(shards, characters)]
        if len(merged) == len(shards):
            return None
        new = replace(version, version=version.version + 1)
        with write_catalog(workspace) as db:
            add_compacted(db, version, new, merged)
    return new


def _groups(shards: Sequence[Shard], characters: int) -> list[list[Shard]]:
    groups: list[list[Shard]] = []
    size = 0
    for shard in shards:
        small = shard.characters < characters // 2
        if groups and small and size + shard.characters <= characters:
            groups[-1].append(shard)
            size += shard.characters
        else:
            groups.append([shard])
            size = shard.characters if small else characters
    return groups


def _merge(shards: Sequence[Shard], workspace: Workspace, corpus: str) -> Shard:
    if len(shards) == 1:
        return shards[0]
    instances = _concatenated([workspace.root / shard.path for shard in shards])
    documents = _concatenated([workspace.root / shard.documents_path for shard in shards])
    path = write_table(instances, workspace.shards(corpus), table_digest(instances))
    documents_path = write_table(documents, workspace.documents(corpus), table_digest(documents))
    bars = zip_longest(*(shard.length_histogram for shard in shards), fillvalue=0)
    names = ("instances", "tokens", "documents", "characters", "words", "sentences")
    return Shard(
        path=workspace.relative(path),
        sha256=sha256(path),
        documents_path=workspace.relative(documents_path),
        documents_sha256=sha256(documents_path),
        length_histogram=tuple(map(sum, bars)),
        **{name: sum(getattr(shard, name) for shard in shards) for name in names},
    )


def _concatenated(paths: Sequence[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in paths]).combine_chunks()


@contextmanager
def locked(workspace: Workspace, corpus: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the `corpus_lock`, and first remove the unfinished and uncommitted files of a killed refresh."""
    with corpus_lock(workspace, corpus, on_wait):
        shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
        for path in uncommitted_files(workspace, [corpus]):
            path.unlink(missing_ok=True)
        try:
            yield
        finally:
            shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
