"""One training at a time on a device: a slot that the system frees when its process ends, however it does."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from albert.devices import device_names
from data.workspace import Workspace
from flows.logs import say


def slot_file(workspace: Workspace, device: str) -> Path:
    """What a training locks: for a GPU one file on this machine, for the CPU one in each workspace."""
    if device == "cpu":
        return workspace.lock("device-cpu")
    return Path(tempfile.gettempdir()) / f"jixu-{getpass.getuser()}" / f"device-{device}.lock"


@contextmanager
def device_slot(workspace: Workspace, processes: int = 1) -> Iterator[None]:
    """Hold the devices of a training; waits, and says so, while another training of this user has one."""
    with ExitStack() as held:
        # in one order everywhere: two that want the same ones cannot wait for each other
        for device in sorted(device_names(processes)):
            path = slot_file(workspace, device)
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                held.enter_context(lock.acquire(timeout=0))
            except Timeout:
                say(f"another training uses {device}: waiting for it to end (slot {path})")
                held.enter_context(lock.acquire(poll_interval=0.5))
        yield
