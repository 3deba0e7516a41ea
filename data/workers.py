"""TODO."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process

END_SECONDS = 20  # for workers, when there is nothing left to do


def _begin_worker(begin: Callable[[], None] | None) -> None:
    # Ctrl-C reaches all processes of a terminal: the one that waits for this one tells of it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin:
        begin()


def _end_with_parent() -> None:
    # it waits for work on a pipe that it holds open itself: nothing else would tell it
    parent_process().join()
    os._exit(1)


@contextmanager
def worker_pool(workers: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Processes that start clean, whatever threads this one has, and call `begin` first. After the block they
    have some seconds to end: one that hangs, be it in a library's farewell, keeps nobody. They do not outlive
    this process, however it ends.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin_worker, initargs=(begin,)
    )
    try:
        yield pool
    finally:
        processes = list((pool._processes or {}).values())  # Python 3.14 has terminate_workers()
        pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + END_SECONDS
        for process in processes:
            process.join(max(until - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
