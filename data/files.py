"""Files that are either complete or absent: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import Any, Concatenate, ParamSpec, TypeVar

from data.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
Files = TypeVar("Files", str, Path, tuple[str, ...], tuple[Path, ...])

TEMPORARY_SUFFIX = ".tmp"
SYNC_THREADS = 16


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write; when the block succeeds, the file replaces `path`.

    `durable`: whether it must survive a power failure; work in progress need not.
    """
    make_folder(path.parent)
    # in containers that share a disk, process ids are alike
    temporary = path.with_name(f"{path.name}.{token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, on disk too: each stands in the one above after a power failure."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[Path]) -> None:
    """Flush many files at a time, which takes a disk hardly longer than one."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(sync, paths))


def check_output(path: Path) -> None:
    """Raise InputError if `--output` cannot be written to this path. Leaves nothing behind."""
    try:
        TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())).close()
    except OSError as error:
        raise InputError(f"--output {path} cannot be written ({error.strerror}): name another file") from None


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises InputError that says where it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object")
    return content


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_lines(path: Path, what: str) -> list[str]:
    """Read the lines of a UTF-8 file, without blank ones and outer spaces. Raises InputError for others."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path} cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def sha256(path: Path) -> str:
    """Return the hex digest of a file's content, or of the names and digests of all files of a folder."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        named = [(str(file.relative_to(path)), sha256(file)) for file in files]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered(make: Callable[Concatenate[Files, P], T]) -> Callable[Concatenate[Files, P], T]:
    """Remember the last result of a function of one or several files, until one of them is changed.

    A worker process outlives many jobs, and a file may be edited between two of them.
    """
    cached: Any = lru_cache(maxsize=1)(lambda states, *args, **kwargs: make(*args, **kwargs))

    @wraps(make)
    def of(files: Files, *args: P.args, **kwargs: P.kwargs) -> T:
        paths = files if isinstance(files, tuple) else (files,)
        return cached(tuple(_identity(Path(path)) for path in paths), files, *args, **kwargs)

    return of


def _identity(path: Path) -> tuple[int, int, int] | None:
    if not path.exists():
        return None
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns
