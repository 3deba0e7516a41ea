"""Write locks: of a corpus on this machine, and of a published workspace wherever it is written from."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from data.errors import InputError
from data.files import make_folder
from data.storage import RemoteFolder, reaching
from data.workspace import Workspace, check_name

WRITER = "writer.json"  # in a published workspace: who may write to it


@contextmanager
def hold(
    path: Path, refusal: str, on_wait: Callable[[], None] | None = None, seconds: float = 0
) -> Iterator[None]:
    """Hold a lock file; the system releases it however the process ends.

    If it is taken for longer than `seconds`, raise InputError with the refusal, or call `on_wait` and wait.
    """
    make_folder(path.parent)
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=seconds)
    except Timeout:
        if on_wait is None:
            raise InputError(refusal) from None
        on_wait()
        held = lock.acquire(poll_interval=0.5)
    with held:
        yield


def corpus_lock(
    workspace: Workspace, corpus: str, on_wait: Callable[[str], None] | None = None
) -> AbstractContextManager[None]:
    """Hold the corpus's write lock. Raises InputError if it is taken; with `on_wait`, passes it a message for
    people and waits.
    """
    check_name(corpus, "corpus")  # it becomes a folder's, also where a stranger's catalog has it
    busy = f"corpus {corpus!r} is being refreshed by another process"
    wait = partial(on_wait, f"{busy}: waiting for it to end") if on_wait else None
    return hold(workspace.lock(f"refresh-{corpus}"), f"{busy}: wait for it to end", wait)


@contextmanager
def writer_lock(store: RemoteFolder) -> Iterator[None]:
    """Be the only writer of a store. Raises InputError naming another one, unless it died on this machine."""
    me = {"host": socket.gethostname(), "process": os.getpid(), "since": datetime.now(UTC).isoformat()}
    try:
        # its own lock is in its way if it was created by a request that was sent again
        while not store.create(WRITER, json.dumps(me).encode()) and _writer(store) != me:
            _remove_dead_writer(store)
    except FileNotFoundError:
        raise InputError(f"{store.url}: no such bucket") from None
    try:
        yield
    finally:
        if _writer(store) == me:  # it may have been unlocked, and locked by another
            unlock(store)


def unlock(store: RemoteFolder) -> None:
    """Let others write."""
    with reaching(store.url):
        store.files.rm_file(WRITER)


def _writer(store: RemoteFolder) -> dict | None:
    with suppress(FileNotFoundError), reaching(store.url, FileNotFoundError):
        return json.loads(store.files.cat_file(WRITER))
    return None


def _remove_dead_writer(store: RemoteFolder) -> None:
    if other := _writer(store):
        if other["host"] != socket.gethostname() or _lives(other):
            raise InputError(
                f"{store.url} is being written to by process {other['process']} of {other['host']} since "
                f"{other['since']}: wait for it to end; if it is gone: jixu corpus unlock {store.url}"
            )
        unlock(store)


def _lives(writer: dict) -> bool:
    """Whether a writer of this machine lives; a container that starts again gives others the same numbers."""
    try:
        began = psutil.Process(writer["process"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return began <= datetime.fromisoformat(writer["since"]).timestamp()
