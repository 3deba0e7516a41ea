"""One training of a run at a time, and which runs only say that they are being trained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from data.catalog import read_catalog, running_runs
from data.records import InputError
from data.workspace import Workspace

_A_LOOK = 2.0  # seconds; `left_off` holds a lock for less


def _lock(workspace: Workspace, run: str) -> FileLock:
    return FileLock(workspace.lock(f"run-{run}"))


@contextmanager
def sole_training(workspace: Workspace, run: str) -> Iterator[None]:
    """Hold a run while it is trained; the system lets go of it when the process ends, however it does.

    Raises InputError when another process has it.
    """
    lock = _lock(workspace, run)
    workspace.lock(run).parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=_A_LOOK)
    except Timeout:
        raise InputError(
            f"run {run} is being trained by another process: wait for it to end, or give --run another name"
        ) from None
    try:
        yield
    finally:
        lock.release()


def left_off(workspace: Workspace) -> list[str]:
    """Runs that the catalog calls running and no process trains: those that trained them were killed.

    None where nothing can be written, as there are no locks either.
    """
    if not os.access(workspace.root, os.W_OK):
        return []
    with read_catalog(workspace) as db:
        said = running_runs(db)
    return [run for run in said if not _is_held(workspace, run)]


def _is_held(workspace: Workspace, run: str) -> bool:
    if not workspace.lock(f"run-{run}").is_file():
        return False
    try:
        with _lock(workspace, run).acquire(timeout=0):
            return False
    except Timeout:
        return True
