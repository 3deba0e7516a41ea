"""Files that are either complete or absent: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
SYNC_THREADS = 16


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write; when the block succeeds, the file replaces `path`.

    `durable`: whether it must survive a power failure; work in progress need not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def sha256(path: Path) -> str:
    """Return the hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
