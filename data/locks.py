"""TODO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from data.errors import InputError
from data.workspace import Workspace


@contextmanager
def sole_writer(
    workspace: Workspace, corpus: str, waits: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Nobody else writes to the corpus meanwhile. If somebody does, raises InputError or,
    given `waits`, calls it with a line for people and waits for the other to end.
    """
    path = workspace.lock(f"refresh-{corpus}")
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = f"corpus {corpus!r} is being refreshed by another process"
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        if waits is None:
            raise InputError(f"{busy}: wait for it to end") from None
        waits(f"{busy}: waiting for it to end")
        held = lock.acquire(poll_interval=0.5)
    with held:
        yield
