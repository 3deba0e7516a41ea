"""Check the files of a workspace against the sums in its catalog."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pydantic import TypeAdapter

from data.catalog.cleanup import Collected, collect_garbage
from data.catalog.database import CatalogLost, read_catalog, read_everything, write_catalog
from data.catalog.versions import old_versions, used_files
from data.errors import InputError
from data.files import write_bytes
from data.instances import MEND, is_readable, verify
from data.workspace import Workspace

TO_REBUILD = "damaged"  # in place of the recipe hash of a version that is to be built again
CHECKED = ".checked.json"  # in a workspace: files that were compared with the catalog
# by path: sha256, bytes, time of the last change in nanoseconds, and inode, which a copy has not
_Checked = TypeAdapter(dict[str, tuple[str, int, int, int]])


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a version that is missing, or differs from what was committed."""

    corpus: str
    path: str  # relative to the workspace
    is_gone: bool
    is_current: bool  # whether the corpus's newest version uses it


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a workspace's files."""

    files: int  # used by versions
    damaged: tuple[DamagedFile, ...]
    garbage: Collected | None = None  # unused or half-written shard files; None on a read-only disk, or
    busy: str | None = None  # because a corpus is being refreshed


def examine(workspace: Workspace) -> Health:
    """Read the catalog, and every file that a version uses, and compare its sha256.

    Raises InputError if there is no catalog of this version of jixu.
    """
    with read_catalog(workspace) as db:
        read_everything(db, workspace)
        query = "select path, sha256 from shards union select documents_path, documents_sha256 from shards"
        sums = dict(db.execute(query).fetchall())
        used, current = sorted(used_files(db, [])), used_files(db, old_versions(db, keep=1))
    damaged = []
    for path in used:
        file = workspace.root / path
        is_whole = verify(file, sums[path]) if path in sums else is_readable(file)
        if not is_whole:
            damaged.append(DamagedFile(path.split("/")[1], path, not file.is_file(), path in current))
    # a running refresh has files that no version uses yet, and a read-only disk has no lock to exclude one
    if not os.access(workspace.root, os.W_OK):
        return Health(len(used), tuple(damaged))
    try:
        return Health(len(used), tuple(damaged), collect_garbage(workspace, dry_run=True))
    except InputError as error:
        return Health(len(used), tuple(damaged), busy=str(error))


def lost_files(workspace: Workspace) -> set[str]:
    """List the files of versions that are gone, by their paths in the workspace."""
    with read_catalog(workspace) as db:
        return {path for path in used_files(db, []) if not (workspace.root / path).is_file()}


def restore(workspace: Workspace) -> list[str]:
    """Put its copy in place of a lost catalog; return the current versions in it.

    A damaged catalog stays beside it as catalog.damaged. Raises InputError, and changes nothing, if there is
    no copy or it is damaged too.
    """
    copy = Workspace(workspace.catalog_copy.parent)
    mend = "refresh the corpora into a new workspace"
    if not copy.catalog.is_file():
        raise InputError(f"{copy.catalog} is gone too: {mend}")
    try:
        with read_catalog(copy) as db:
            read_everything(db, copy)
            newest = "select corpus, max(version) from versions group by corpus order by corpus"
            restored = [f"{corpus} version {version}" for corpus, version in db.execute(newest).fetchall()]
    except CatalogLost:
        raise InputError(f"{copy.catalog} is damaged too: {mend}") from None
    if workspace.catalog.is_file():
        os.replace(workspace.catalog, workspace.catalog.with_suffix(".damaged"))
    write_bytes(workspace.catalog, copy.catalog.read_bytes())
    return restored


def mark_for_rebuilding(workspace: Workspace, corpus: str) -> None:
    """Make the next refresh of a corpus rebuild every shard from its sources, as for a new recipe."""
    with write_catalog(workspace) as db:
        newest = "select max(version) from versions where corpus = $corpus"
        query = f"update versions set recipe_hash = $mark where corpus = $corpus and version = ({newest})"
        db.execute(query, {"corpus": corpus, "mark": TO_REBUILD})


@contextmanager
def checking(workspace: Workspace, shards: Sequence[Path]) -> Iterator[Callable[[], None]]:
    """Compare shards with the catalog in a thread during the block, which ends when all are compared.

    Yields a function that raises InputError once one is found damaged; so does the end of the block, and its
    beginning if the catalog knows one no more.
    """
    paths = {workspace.relative(path) for path in shards}
    with read_catalog(workspace) as db:
        rows = db.execute("select path, sha256 from shards").fetchall()
    sums = {path: digest for path, digest in rows if path in paths}
    if gone := paths - sums.keys():  # since the plan, while the run waited for its device
        raise InputError(f"{min(gone)} is of a version that was removed meanwhile: run it again")
    is_over = Event()
    with ThreadPoolExecutor(1) as pool:
        comparison = pool.submit(_check, sums, workspace, is_over)
        try:
            yield lambda: comparison.result() if comparison.done() else None
            comparison.result()
        except BaseException:
            is_over.set()
            raise


def _check(sums: Mapping[str, str], workspace: Workspace, is_over: Event) -> None:
    """Raise InputError for the first file that is not as committed. Unchanged files are read only once."""
    checked: dict[str, tuple[str, int, int, int]] = {}
    with suppress(OSError, ValueError):
        checked = _Checked.validate_json((workspace.root / CHECKED).read_bytes())
    try:
        for path, digest in sums.items():
            file = workspace.root / path
            stat = file.stat() if file.is_file() else None
            state = (digest, stat.st_size, stat.st_mtime_ns, stat.st_ino) if stat else None
            if is_over.is_set() or (state and checked.get(path) == state):
                continue
            if not state or not verify(file, digest):
                raise InputError(f"{file} is not as it was committed: {MEND}")
            checked[path] = state
    finally:
        with suppress(OSError):  # a full or read-only disk: they are read again next time
            write_bytes(workspace.root / CHECKED, _Checked.dump_json(checked))
