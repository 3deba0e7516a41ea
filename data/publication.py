"""A workspace on S3, or any storage that fsspec knows: pulled into a copy on this machine, and published.

DuckDB, locks and renames need a file system, so work is done in the copy. What is published is immutable:
files named by their sha256, then a manifest with the next number that lists them all, the catalog among them.
A reader takes the highest manifest, so one that was cut off leaves the one before whole. Manifests and
`writer.json` are created, never replaced (on S3 by `If-None-Match`): of two writers, one is refused.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from data.catalog import bring_in_tokenizers, heal_views
from data.errors import InputError
from data.files import TEMPORARY_SUFFIX, replacing, sha256, write_text
from data.storage import file_system, is_remote, unreached
from data.workspace import Workspace, local_folder

FORMAT = 1  # of manifests
KEPT = 3  # manifests: who pulls an older one while it is written over pulls again
TRANSFERS = 8  # at a time
INDEX = ".published.json"
# of a workspace, what is published; not its locks, work in progress and Prefect's files
FOLDERS = ("documents", "evaluations", "lexicons", "models", "reports", "shards", "tokenizers")


@dataclass(frozen=True, slots=True)
class Entry:
    """A published file."""

    sha256: str
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was published at once. Number 0: nothing yet."""

    number: int
    files: dict[str, Entry]  # by path in the workspace


@dataclass(frozen=True, slots=True)
class Base:
    """The manifest that a copy was last equal to, and how each file of it looked then."""

    manifest: Manifest
    times: dict[str, int]  # of modification, in nanoseconds


class Store:
    """The published side of a workspace. Raises InputError for a storage that cannot be reached."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        if self.url.startswith(("file://", "local://")):
            raise InputError(f"{url}: a folder needs no URL: pass its path")
        self.system, root = file_system(self.url)
        self.root = root.rstrip("/")

    def place(self, path: str, entry: Entry) -> str:
        # with its suffix, so that a browser or DuckDB knows what it is
        return f"{self.root}/files/{entry.sha256}{PurePosixPath(path).suffix}"

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Errors of the storage's own library as InputError."""
        try:
            yield
        except (FileExistsError, FileNotFoundError, InputError):
            raise
        except Exception as error:  # whatever the file system's own library raises
            raise unreached(self.url, error) from None

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of the files in a folder, by name and in its order."""
        with self.reached():
            self.system.invalidate_cache()
            try:
                found = self.system.find(f"{self.root}/{folder}", detail=True)
            except FileNotFoundError:
                return {}
        return {PurePosixPath(path).name: found[path]["size"] for path in sorted(found)}

    def numbers(self) -> list[int]:
        """Of the manifests, in order."""
        return [int(PurePosixPath(name).stem) for name in self.sizes("manifests")]

    def read(self) -> Manifest:
        """The highest manifest. Raises InputError for one of a newer jixu."""
        numbers = self.numbers()
        if not numbers:
            return Manifest(0, {})
        with self.reached():
            record = json.loads(self.system.cat_file(self._manifest(numbers[-1])))
        if record["format"] > FORMAT:
            raise InputError(f"{self.url} was published by a newer jixu: upgrade this one")
        return Manifest(numbers[-1], {path: Entry(**entry) for path, entry in record["files"].items()})

    def create(self, manifest: Manifest) -> None:
        """Make a manifest the highest one. Raises FileExistsError if another writer did that before."""
        record = {"format": FORMAT, "files": {path: asdict(entry) for path, entry in manifest.files.items()}}
        with self.reached():
            self.system.pipe_file(self._manifest(manifest.number), json.dumps(record).encode(), mode="create")

    def _manifest(self, number: int) -> str:
        return f"{self.root}/manifests/{number:08}.json"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer. Raises InputError naming another, unless it was of this machine and died."""
        me = {"host": socket.gethostname(), "process": os.getpid(), "since": datetime.now(UTC).isoformat()}
        self._take(me)
        try:
            yield
        finally:
            if self._writer() == me:  # it may have been let go, and taken by another
                self.release()

    def _take(self, me: dict[str, object]) -> None:
        try:
            with self.reached():
                self.system.pipe_file(f"{self.root}/writer.json", json.dumps(me).encode(), mode="create")
            return
        except FileNotFoundError:
            raise InputError(f"{self.url}: no such bucket") from None
        except FileExistsError:
            other = self._writer()
        if other and (other["host"] != me["host"] or _is_alive(other["process"])):
            raise InputError(
                f"{self.url} is being written to by process {other['process']} of {other['host']} since "
                f"{other['since']}: wait for it to end; if it is gone: jixu corpus unlock "
                f"{self.url}"
            )
        if other:
            self.release()
        self._take(me)

    def _writer(self) -> dict[str, object] | None:
        with self.reached():
            try:
                return json.loads(self.system.cat_file(f"{self.root}/writer.json"))
            except FileNotFoundError:
                return None

    def release(self) -> None:
        """Let others write."""
        with self.reached():
            self.system.rm_file(f"{self.root}/writer.json")

    def prune(self) -> None:
        """Remove all but the newest manifests, and files that none of them lists."""
        numbers = self.numbers()
        kept: set[str] = set()
        for number in numbers[-KEPT:]:
            with self.reached():
                listed = json.loads(self.system.cat_file(self._manifest(number)))["files"]
            kept |= {PurePosixPath(self.place(path, Entry(**entry))).name for path, entry in listed.items()}
        gone = [self._manifest(number) for number in numbers[:-KEPT]]
        gone += [f"{self.root}/files/{name}" for name in self.sizes("files") if name not in kept]
        _in_threads(self.system.rm_file, [(path,) for path in gone], self)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _conflict(url: str, workspace: Workspace) -> InputError:
    return InputError(
        f"{url} was published by another writer meanwhile, and {workspace.root} was changed too: save what "
        "only it has, then remove it; the next command pulls what is published"
    )


def _in_threads(work: Callable[..., None], arguments: Iterable[tuple], store: Store) -> None:
    with ThreadPoolExecutor(TRANSFERS) as pool, store.reached():
        for future in [pool.submit(work, *given) for given in arguments]:
            future.result()


def read_base(workspace: Workspace, url: str) -> Base:
    """What a copy was last equal to. Raises InputError if it is another URL's."""
    path = workspace.root / INDEX
    if not path.is_file():
        return Base(Manifest(0, {}), {})
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["url"] != url:
        raise InputError(
            f"{workspace.root} is a copy of {record['url']}, not of {url}: choose another folder"
        )
    files = {name: Entry(**entry) for name, entry in record["files"].items()}
    return Base(Manifest(record["number"], files), record["times"])


def _write_base(workspace: Workspace, url: str, manifest: Manifest) -> None:
    times = {name: (workspace.root / name).stat().st_mtime_ns for name in manifest.files}
    files = {name: asdict(entry) for name, entry in manifest.files.items()}
    record = {"url": url, "number": manifest.number, "files": files, "times": times}
    write_text(workspace.root / INDEX, json.dumps(record))


def list_files(workspace: Workspace, base: Base) -> dict[str, Entry]:
    """Every file of a copy that is to be published; only those are read that changed since its base."""
    found: dict[str, Entry] = {}
    paths = [workspace.catalog, *(p for f in FOLDERS for p in sorted((workspace.root / f).rglob("*")))]
    for path in paths:
        if not path.is_file() or path.name.endswith(TEMPORARY_SUFFIX):
            continue
        name, stat = path.relative_to(workspace.root).as_posix(), path.stat()
        known = base.manifest.files.get(name)
        # the catalog's size changes when its views are pointed at this machine
        same = known is not None and base.times[name] == stat.st_mtime_ns
        found[name] = known if same else Entry(sha256(path), stat.st_size)
    return found


def pull(store: Store, workspace: Workspace) -> Manifest:
    """Make a copy equal to what is published, unless only the copy changed. The catalog comes last.

    Raises InputError where both changed, and for a file that is not what was published.
    """
    base, newest = read_base(workspace, store.url), store.read()
    if newest.number == base.manifest.number:
        return newest
    here = list_files(workspace, base)
    known = base.manifest.files
    # a pull that was cut off left files of the newest manifest
    if any(entry not in (known.get(name), newest.files.get(name)) for name, entry in here.items()):
        raise _conflict(store.url, workspace)
    catalog = workspace.catalog.name
    wanted = [name for name, entry in newest.files.items() if here.get(name) != entry]
    fetched = [(store, workspace, name, newest.files[name]) for name in wanted if name != catalog]
    _in_threads(_fetch, fetched, store)
    if catalog in wanted:
        _fetch(store, workspace, catalog, newest.files[catalog])
    for name in known.keys() - newest.files.keys():
        (workspace.root / name).unlink(missing_ok=True)
    _write_base(workspace, store.url, newest)
    if workspace.catalog.is_file():
        heal_views(workspace)
        # its views are this machine's: no change to be published
        _write_base(workspace, store.url, newest)
    return newest


def require(manifest: Manifest, url: str) -> Manifest:
    """The manifest, if it is one. Raises InputError where nothing is published."""
    if not manifest.number:
        raise InputError(f"nothing is published at {url}")
    return manifest


def _fetch(store: Store, workspace: Workspace, name: str, entry: Entry) -> None:
    path = (workspace.root / name).resolve()
    if not path.is_relative_to(workspace.root.resolve()):
        raise InputError(f"{store.url} lists {name}, which is outside a workspace: it was tampered with")
    with replacing(path) as temporary:
        try:
            store.system.get_file(store.place(name, entry), str(temporary))
        except FileNotFoundError:
            raise InputError(f"{name} is gone from {store.url}, or was replaced: pull again") from None
        if sha256(temporary) != entry.sha256:
            raise InputError(f"{name} in {store.url} is damaged: its sha256 is not {entry.sha256}")


def publish(store: Store, workspace: Workspace) -> Manifest:
    """Publish a copy's files, then the manifest that lists them; where nothing changed, that of before.

    Raises InputError if another writer published since the copy was pulled.
    """
    if workspace.catalog.is_file():
        bring_in_tokenizers(workspace)
    base = read_base(workspace, store.url)
    files, there = list_files(workspace, base), store.sizes("files")
    # a pulled catalog that nobody wrote to differs from the published one in its views
    pulled = (workspace.catalog.name, base.manifest.files.get(workspace.catalog.name))
    # of those listed before, too: one that is gone from the storage is mended
    sent = {
        place: workspace.root / name
        for name, entry in files.items()
        if there.get(PurePosixPath(place := store.place(name, entry)).name) != entry.size
        and (name, entry) != pulled
    }
    _in_threads(store.system.put_file, [(str(path), place) for place, path in sent.items()], store)
    if files == base.manifest.files:
        return base.manifest
    manifest = Manifest(base.manifest.number + 1, files)
    try:
        store.create(manifest)
    except FileExistsError:
        raise _conflict(store.url, workspace) from None
    _write_base(workspace, store.url, manifest)
    store.prune()
    return manifest


@contextmanager
def working_copy(place: str, *, read_only: bool = False) -> Iterator[str]:
    """The folder to work in: `place` itself, or for a URL a copy of it, which is published when the block
    ends. Where it raises, what was made stays in the copy, and is published by the next that ends well.
    """
    if not is_remote(place):
        yield place
        return
    store, workspace = Store(place), Workspace(local_folder(place))
    workspace.root.mkdir(parents=True, exist_ok=True)
    if read_only:
        require(pull(store, workspace), place)
        yield str(workspace.root)
        return
    with store.writing():
        pull(store, workspace)
        yield str(workspace.root)
        publish(store, workspace)
