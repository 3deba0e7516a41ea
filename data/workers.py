"""Worker processes that start clean and never outlive their parent."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process

import psutil
from tqdm import tqdm

END_SECONDS = 20  # for workers that have nothing left to do


def _begin_worker(begin: Callable[[], None] | None) -> None:
    # Ctrl-C reaches every process of a terminal; the parent reports it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # Python warns of one between processes if this one is killed
    if begin:
        begin()


def _end_with_parent() -> None:
    # a worker holds the pipe it waits on open itself, so nothing else would wake it
    if parent := parent_process():  # of a fork server it is not the process that forked this one
        parent.join()
        os._exit(1)


@contextmanager
def worker_pool(workers: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that share no thread or state with this one and call `begin` first.

    When the block ends they get END_SECONDS to exit, then are killed: a library may hang at exit. If it fails
    or is stopped they are killed at once. They end with this process, however it ends.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin_worker, initargs=(begin,)
    )
    patience = 0.0
    try:
        yield pool
        patience = END_SECONDS
    finally:
        processes = list((pool._processes or {}).values())  # Python 3.14 has terminate_workers()
        pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + patience
        for process in processes:
            process.join(max(until - time.monotonic(), 0))
            if process.is_alive():
                process.kill()


def end_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Have this process get a signal, once, when `parent`, the process that started it, dies.

    Linux's PR_SET_PDEATHSIG signals when the thread that started it ends, and once for each thread after it.
    """
    threading.Thread(target=_end_without, args=(parent, number), daemon=True).start()


def end(processes: Sequence[psutil.Process], seconds: float, number: int = signal.SIGTERM) -> None:
    """Send processes a signal, and wait for them and their children, which end when they notice.

    Kill what is left after some seconds, or at once on Ctrl-C.
    """
    everyone = [*processes]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            everyone += process.children(recursive=True)
            process.send_signal(number)
    with suppress(KeyboardInterrupt):
        _, everyone = psutil.wait_procs(everyone, seconds)
    for process in everyone:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everyone, 10)


def _end_without(parent: int, number: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), number)
