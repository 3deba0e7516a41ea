"""Whether a workspace holds what its catalog says: every file by its checksum, and nothing beside them."""
# DOC: """Keeping a workspace tidy: shards no kept version uses, small shards, files no one knows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog.database import read_catalog, uncommitted_files, write_catalog
from data.catalog.versions import (
    Version,
    add_compacted,
    newest_version,
    remove_versions,
    used_files,
    version_shards,
)
from data.errors import InputError
from data.files import sha256
from data.instances import SHARD_CHARACTERS, Shard, table_digest, verify, write_table
from data.locks import sole_writer
from data.workspace import Workspace

KEEP_ALL = 10**9  # versions


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a version that is gone, or not what was committed."""

    corpus: str
    path: str  # relative to the workspace
    is_gone: bool


@dataclass(frozen=True, slots=True)
class Health:
    """What was found in a workspace."""

    files: int  # that versions use
    damaged: tuple[DamagedFile, ...]
    # shard files that no version uses, and half-written ones; not looked for where nothing can be written
    orphans: tuple[str, ...]
    orphan_bytes: int


def examine(workspace: Workspace) -> Health:
    """Read every file that a version uses and compare its sha256.

    Raises InputError where there is no catalog, it is another jixu's, or a corpus is being refreshed.
    """
    with read_catalog(workspace) as db:
        sums = dict(
            db.execute(
                "select path, sha256 from shards union select documents_path, documents_sha256 from shards"
            ).fetchall()
        )
        used = sorted(used_files(db, []))
    damaged = []
    for path in used:
        file = workspace.root / path
        # listings and indexes have no checksum: they are made of what does
        whole = verify(file, sums[path]) if path in sums else file.is_file()
        if not whole:
            damaged.append(DamagedFile(path.split("/")[1], path, not file.is_file()))
    # orphans are looked for while no refresh runs: on a read-only disk there is no lock to say so
    if not os.access(workspace.root, os.W_OK):
        return Health(len(used), tuple(damaged), (), 0)
    garbage = collect_garbage(workspace, keep=KEEP_ALL, dry_run=True)
    return Health(len(used), tuple(damaged), garbage.files, garbage.bytes)


def remove_orphans(workspace: Workspace) -> int:
    """Remove files that no version uses; returns how many."""
    return len(collect_garbage(workspace, keep=KEEP_ALL).files)


def mark_for_rebuilding(workspace: Workspace, corpora: Sequence[str]) -> None:
    """Have the next refresh of each corpus build every shard anew from its sources, as for another recipe."""
    with write_catalog(workspace) as db:
        for corpus in corpora:
            db.execute(
                "update versions set recipe_hash = 'damaged' where corpus = ? and version = "
                "(select max(version) from versions where corpus = ?)",
                [corpus, corpus],
            )


@dataclass(frozen=True, slots=True)
class Collected:
    """What was taken away."""

    versions: tuple[tuple[str, int], ...]
    files: tuple[str, ...]  # relative to the workspace
    bytes: int


def collect_garbage(workspace: Workspace, *, keep: int, dry_run: bool = False) -> Collected:
    """Remove all but each corpus's `keep` newest versions, and every shard file that none of them uses.

    Versions that a pretraining run was trained on are kept. Raises InputError if a corpus is being refreshed.
    """
    if keep < 1:
        raise InputError(f"keep={keep}: at least the current version stays")
    with ExitStack() as locks:
        corpora = _corpora(workspace)
        for corpus in corpora:
            locks.enter_context(sole_writer(workspace, corpus))
        with read_catalog(workspace) as db:
            versions = remove_versions(db, keep, dry_run=True)
        # of these corpora only: one that began after they were listed is not locked
        orphans = uncommitted_files(workspace, corpora, versions)
        size = sum(path.stat().st_size for path in orphans)
        names = tuple(workspace.relative(path) for path in orphans)
        if not dry_run:
            if versions:
                with write_catalog(workspace) as db:
                    remove_versions(db, keep, dry_run=False)
            # after the catalog no longer names them: a crash here leaves orphans for the next time
            for path in orphans:
                path.unlink()
            for corpus in corpora:
                shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    return Collected(tuple(versions), names, size)


def _corpora(workspace: Workspace) -> list[str]:
    """Those in the catalog, and those that have files but no version yet."""
    with read_catalog(workspace) as db:
        known = {name for (name,) in db.execute("select corpus from corpora").fetchall()}
    folders = (workspace.shards(""), workspace.documents(""), workspace.staging(""))
    return sorted(known | {path.name for root in folders if root.is_dir() for path in root.iterdir()})


def compact(workspace: Workspace, corpus: str, *, characters: int = SHARD_CHARACTERS) -> Version | None:
    """Merge neighbouring shards of under half of `characters` into a new version; None if there are none."""
    with locked(workspace, corpus):
        with read_catalog(workspace) as db:
            version = newest_version(db, corpus)
            if version is None:
                raise InputError(f"no corpus {corpus!r} in {workspace.root}")
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
    bars = max(len(shard.length_histogram) for shard in shards)
    histogram = [0] * bars
    for shard in shards:
        for bar, count in enumerate(shard.length_histogram):
            histogram[bar] += count
    names = ("instances", "tokens", "documents", "characters", "words", "sentences")
    return Shard(
        path=workspace.relative(path),
        sha256=sha256(path),
        documents_path=workspace.relative(documents_path),
        documents_sha256=sha256(documents_path),
        length_histogram=tuple(histogram),
        **{name: sum(getattr(shard, name) for shard in shards) for name in names},
    )


def _concatenated(paths: Sequence[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in paths]).combine_chunks()


@contextmanager
def locked(workspace: Workspace, corpus: str, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """One refresh of a corpus at a time, as `sole_writer` has it. Sweeps what a killed one left."""
    with sole_writer(workspace, corpus, waits):
        _sweep(workspace, corpus)
        try:
            yield
        finally:
            shutil.rmtree(workspace.staging(corpus), ignore_errors=True)


def _sweep(workspace: Workspace, corpus: str) -> None:
    """Remove what a killed refresh had not finished, and what it had and did not commit."""
    shutil.rmtree(workspace.staging(corpus), ignore_errors=True)
    for path in uncommitted_files(workspace, [corpus]):
        path.unlink(missing_ok=True)
