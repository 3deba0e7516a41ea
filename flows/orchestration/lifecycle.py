"""A deployment's run ends with its worker: without one no cancel reaches it, and nobody tells its end."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TypeVar

import psutil
from prefect.client.orchestration import get_client
from prefect.states import Crashed, State

from flows.orchestration.flow_runs import crash
from flows.orchestration.logs import is_deployed

F = TypeVar("F", bound=Callable)

MESSAGE = "The worker of this run is gone, so the run was ended. Run it again to go on."
LOOK_SECONDS = 0.5
GRACE_SECONDS = 60.0  # to end in, a training with a checkpoint

_gone = threading.Event()
_watching = threading.Lock()


def ends_with_its_worker(function: F) -> F:
    """End a deployment's run as a termination does, but as Crashed, once the process that began it is gone.

    On POSIX Prefect's workers and `flow.serve` begin a run as a child of their own, with no shell between.
    """

    @wraps(function)
    def run(*given: object, **named: object) -> object:
        if not is_deployed():
            return function(*given, **named)
        try:
            with _watch():
                outcome = function(*given, **named)
        except BaseException:  # Prefect's TerminationSignal, or what it has led to
            if not _is_gone():
                raise
            return Crashed(message=MESSAGE)
        # a training that is asked to stop ends well, as cancelled
        return Crashed(message=MESSAGE) if _is_gone() and isinstance(outcome, State) else outcome

    return run


def _is_gone() -> bool:
    # an event cannot be sent to a Dask cluster, and a flow's function is, with what it names
    return _gone.is_set()


@contextmanager
def _watch() -> Iterator[None]:
    """Look after the worker while the block runs; a flow that another one calls is looked after already."""
    if not _watching.acquire(blocking=False):
        yield
        return
    ended, pipes = threading.Event(), _open_pipes()
    threading.Thread(target=_end_with, args=(os.getppid(), pipes, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _watching.release()


def _open_pipes() -> dict[int, int]:
    """The other ends, by descriptor, where standard output and errors are pipes to the worker. While they are
    open, what is printed after its end raises no error: of one in a log rich makes an exit of the process.
    """
    pipes = {}
    for number in (1, 2):
        with suppress(OSError):  # closed, or there is no /proc
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                pipes[number] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    return pipes


def _end_with(worker: int, pipes: Mapping[int, int], ended: threading.Event) -> None:
    """Ask this process to end when another one has become its parent."""
    while os.getppid() == worker and not ended.wait(LOOK_SECONDS):
        pass
    if not ended.is_set():
        _gone.set()
        with open(os.devnull, "wb") as nowhere:  # nobody would empty them
            for number in pipes:
                os.dup2(nowhere.fileno(), number)
        os.kill(os.getpid(), signal.SIGTERM)
    for other_end in pipes.values():
        os.close(other_end)
    if _gone.is_set():
        time.sleep(GRACE_SECONDS)  # which this thread does not see the end of, unless something hangs
        _kill()


def _kill() -> None:
    """Kill this process and all it began, the server being told where it can be reached."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    with suppress(Exception), get_client(sync_client=True) as client:
        crash(client, [client.read_flow_run(os.environ["PREFECT__FLOW_RUN_ID"])], MESSAGE)
    os.kill(os.getpid(), signal.SIGKILL)
