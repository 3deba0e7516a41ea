"""Pull a workspace from S3, or any storage that fsspec knows, into a copy to work in, and publish it again.

Published files are immutable: named by their sha256, then listed, the catalog included, in a numbered
manifest. Readers take the highest one, so an interrupted publication leaves the previous one whole. Manifests
are created, never replaced (on S3 by `If-None-Match`), so one of two writers is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import PurePosixPath

from pydantic import TypeAdapter

from data import catalog
from data.errors import InputError
from data.files import TEMPORARY_SUFFIX, make_folder, replacing, sha256, write_bytes
from data.locks import writer_lock
from data.storage import RemoteFolder, is_remote, reaching
from data.workspace import Workspace, default_place, local_folder

KEPT_MANIFESTS = 3  # old ones are kept so that a slow reader can finish
INDEX = ".published.json"  # in a copy: the manifest that it was last equal to
# what is published of a workspace: not its locks, work in progress and Prefect's files
FOLDERS = ("backup", "documents", "evaluations", "lexicons", "models", "reports", "shards", "tokenizers")


@dataclass(frozen=True)
class Entry:
    sha256: str
    size: int  # bytes

    def stored_as(self, name: str) -> str:
        return f"files/{self.sha256}{PurePosixPath(name).suffix}"  # a browser or DuckDB needs the suffix


@dataclass(frozen=True)
class Manifest:
    number: int = 0  # 0: nothing is published yet
    files: dict[str, Entry] = field(default_factory=dict)  # by path in the workspace
    format: int = 1
    url: str = ""  # of a copy: where it is published
    times: dict[str, int] = field(default_factory=dict)  # of a copy's files: modification, in nanoseconds


MANIFEST = TypeAdapter(Manifest)
_CONFLICT = "{} was published by another writer meanwhile: save what only {} has, remove it, and begin again"


def _read_manifest(store: RemoteFolder, path: str) -> Manifest:
    with reaching(store.url):
        manifest = MANIFEST.validate_json(store.files.cat_file(path))
    if manifest.format > Manifest.format:
        raise InputError(f"{store.url} was published by a newer jixu: upgrade this one")
    return replace(manifest, number=int(PurePosixPath(path).stem))  # 0.2.0's first manifests hold none


def _read_base(workspace: Workspace) -> Manifest:
    path = workspace.root / INDEX
    return MANIFEST.validate_json(path.read_bytes()) if path.is_file() else Manifest()


def _read_both(store: RemoteFolder, workspace: Workspace) -> tuple[Manifest, Manifest]:
    """Read the manifest that a copy was last equal to, and the newest one."""
    base, url = _read_base(workspace), store.url
    if base.url not in ("", url):
        raise InputError(f"{workspace.root} is a copy of {base.url}, not of {url}: choose another folder")
    manifests = list(store.sizes("manifests"))
    return replace(base, url=url), _read_manifest(store, manifests[-1]) if manifests else Manifest()


def published_at(workspace: Workspace) -> str:
    """Return the URL that a folder is a copy of, or the folder's absolute path if it is none."""
    return _read_base(workspace).url or str(workspace.root.resolve())


def _list_files(workspace: Workspace, base: Manifest) -> Manifest:
    """List the files to publish and their times, hashing only those that changed since `base`."""
    files, times = dict[str, Entry](), dict[str, int]()
    # a folder may be a link to another disk, which `rglob` does not follow
    found = (glob(f"{f}/**", root_dir=workspace.root, recursive=True, include_hidden=True) for f in FOLDERS)
    for name in (workspace.catalog.name, *sorted(sum(found, []))):
        if (path := workspace.root / name).is_file() and not name.endswith(TEMPORARY_SUFFIX):
            stat = path.stat()
            is_same = name in base.files and base.times[name] == stat.st_mtime_ns
            files[name] = base.files[name] if is_same else Entry(sha256(path), stat.st_size)
            times[name] = stat.st_mtime_ns
    return replace(base, files=files, times=times)


def pull(store: RemoteFolder, workspace: Workspace, *, may_be_empty: bool = False) -> Manifest:
    """Make a copy equal to what is published; InputError if both changed.

    A copy that alone changed only gets back the files that it lacks, as a cache may be cleared of old ones.
    """
    base, newest = _read_both(store, workspace)
    if not (newest.number or may_be_empty):
        raise InputError(f"nothing is published at {store.url}")
    make_folder(workspace.root)
    is_same = newest.files == base.files
    if is_same and all((workspace.root / name).is_file() for name in base.files):
        return newest
    if newest.number < base.number:
        raise InputError(
            f"{store.url} has lost publications: it holds {newest.number}, and {workspace.root} is a copy of "
            f"{base.number}. Publish that again with jixu corpus push, or remove it"
        )
    here = _list_files(workspace, base).files  # some of the newest if a pull was interrupted
    has_own = bool(here.items() - base.files.items() - newest.files.items())
    if has_own and not is_same:
        raise InputError(_CONFLICT.format(store.url, workspace.root))
    missing = {
        name: entry
        for name, entry in newest.files.items()
        if name not in here or (here[name] != entry and not has_own)
    }
    last = missing.keys() & {workspace.catalog.name}
    for names in (missing.keys() - last, () if has_own else last):  # a lost one is in the backup
        store.transfer(lambda name: _fetch(store, workspace, name, missing[name]), names)
    if has_own:
        return newest
    for name in base.files.keys() - newest.files.keys():
        (workspace.root / name).unlink(missing_ok=True)
    times = {name: (workspace.root / name).stat().st_mtime_ns for name in newest.files}
    write_bytes(workspace.root / INDEX, MANIFEST.dump_json(replace(newest, url=store.url, times=times)))
    return newest


def _fetch(store: RemoteFolder, workspace: Workspace, name: str, entry: Entry) -> None:
    path = workspace.root / name
    if workspace.relative(path) != name:
        raise InputError(f"{store.url} lists {name}, which is outside a workspace: it was tampered with")
    with replacing(path) as temporary:
        try:
            store.files.get_file(entry.stored_as(name), str(temporary))
        except FileNotFoundError:
            raise InputError(f"{name} is gone from {store.url}, or was replaced: pull again") from None
        if sha256(temporary) != entry.sha256:
            raise InputError(f"{name} in {store.url} is damaged: its sha256 is not {entry.sha256}")


def publish(store: RemoteFolder, workspace: Workspace) -> Manifest:
    """Publish a copy's changed files, then a manifest. Raises InputError if another writer was faster."""
    base, newest = _read_both(store, workspace)
    if catalog.has_catalog(workspace):
        catalog.bring_in_tokenizers(workspace)
        if lost := base.files.keys() & catalog.lost_files(workspace):
            raise InputError(
                f"{len(lost)} published file(s) of versions are gone from {workspace.root}, first "
                f"{min(lost)}: jixu corpus pull brings them back"
            )
    here = _list_files(workspace, base)
    if newest.number >= base.number and newest.files not in (base.files, here.files):
        raise InputError(_CONFLICT.format(store.url, workspace.root))
    stored, names = store.sizes("files"), {entry.stored_as(name): name for name, entry in here.files.items()}
    # files listed before are checked too, so that one lost from the storage is sent again
    missing = [path for path, name in names.items() if stored.get(path) != here.files[name].size]
    store.transfer(lambda path: store.files.put_file(str(workspace.root / names[path]), path), missing)
    if _list_files(workspace, here).files != here.files:
        raise InputError(f"{workspace.root} was written to while it was published: publish it again")
    is_new = here.files != newest.files  # else it is published, perhaps by this copy before it was killed
    here = replace(here, number=max(base.number, newest.number) + is_new)
    if is_new:
        content = MANIFEST.dump_json(here, exclude={"url", "times"})
        if not store.create(f"manifests/{here.number:08}.json", content):
            return publish(store, workspace)  # there is another's, or its own of which it never heard
        _prune(store)
    write_bytes(workspace.root / INDEX, MANIFEST.dump_json(here))
    return here


def _prune(store: RemoteFolder) -> None:
    """Remove all but the newest manifests, and the files that none of those lists."""
    paths = list(store.sizes("manifests"))
    recent = [_read_manifest(store, path) for path in paths[-KEPT_MANIFESTS:]]
    listed = {entry.stored_as(name) for one in recent for name, entry in one.files.items()}
    store.transfer(store.files.rm_file, [*paths[:-KEPT_MANIFESTS], *(store.sizes("files").keys() - listed)])


@contextmanager
def working_copy(place: str | None = None, *, read_only: bool = False) -> Iterator[Workspace]:
    """Yield the workspace at a folder, or a copy of the one at a URL, which is published when the block ends.

    By default that of JIXU_WORKSPACE, or ./workspace. What a failed block left, the next good one publishes.
    """
    place = place or default_place()
    workspace = Workspace(local_folder(place))
    if not is_remote(place):
        yield workspace
        return
    store = RemoteFolder(place)
    with nullcontext() if read_only else writer_lock(store):
        pull(store, workspace, may_be_empty=not read_only)
        yield workspace
        if not read_only:
            publish(store, workspace)
