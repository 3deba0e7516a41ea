"""Slots of devices and runs: one training on a device, and one of a run, at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from albert.runtime import device_names
from data.catalog import read_catalog, running_runs
from data.errors import InputError
from data.locks import hold
from data.workspace import Workspace
from flows.orchestration.logs import say


def slot_file(workspace: Workspace, device: str) -> Path:
    """Return the lock file of a device: one per machine for a GPU, one per workspace for the CPU."""
    if device == "cpu":
        return workspace.lock("device-cpu")
    return Path(tempfile.gettempdir()) / f"jixu-{os.getuid()}" / f"device-{device}.lock"


@contextmanager
def device_slot(workspace: Workspace, processes: int = 1) -> Iterator[None]:
    """Hold the devices of a training. Wait, with a message, while another training of this user has one."""
    with ExitStack() as held:
        # always in the same order, so that two trainings cannot wait for each other
        for device in sorted(device_names(processes)):
            path = slot_file(workspace, device)
            busy = f"another training uses {device}: waiting for it to end (slot {path})"
            held.enter_context(hold(path, busy, partial(say, busy)))
        yield


def sole_training(workspace: Workspace, run: str) -> AbstractContextManager[None]:
    """Hold a run's lock while it trains. Raise InputError if another process holds it."""
    refusal = f"run {run} is being trained by another process: wait for it to end, or give --run another name"
    # seconds; `abandoned_runs` holds it for less
    return hold(workspace.lock(f"run-{run}"), refusal, seconds=2)


def abandoned_runs(workspace: Workspace) -> list[str]:
    """Return the runs that the catalog calls running and no process trains: theirs were killed.

    Return none where nothing can be written, as there are no locks either.
    """
    if not os.access(workspace.root, os.W_OK):
        return []
    with read_catalog(workspace) as db:
        runs = running_runs(db)
    abandoned = []
    for run in runs:
        with suppress(InputError), hold(workspace.lock(f"run-{run}"), "it is being trained"):
            abandoned.append(run)
    return abandoned
