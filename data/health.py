"""Whether a workspace holds what its catalog says: every file by its checksum, and nothing beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from data.catalog import read_catalog, used_files, write_catalog
from data.maintenance import collect_garbage
from data.shards import verify
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
