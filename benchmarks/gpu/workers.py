"""Processes that run functions for `benchmarks.gpu`: side by side, and apart from each other.

After an error on the GPU a process does not recover, and a kernel may never end: each function that fails so
takes its own process along, and the next one gets a new process. None outlives the process that asks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

import torch

import kernels

Task = tuple[Callable[..., Any], tuple[object, ...]]
LATE = "no time left"
ENDED = "its process ended with status"


@dataclass(frozen=True)
class Failure:
    """Why a task has no result."""

    reason: str
    is_late: bool = False


def reason(error: BaseException) -> str:
    """Describe an error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def call(task: Task) -> object:
    """Run a task; returns its result or its Failure."""
    function, arguments = task
    try:
        return function(*arguments)
    except Exception as error:
        return Failure(reason(error), is_late=isinstance(error, torch.OutOfMemoryError))


def run_tasks(
    tasks: Sequence[Task], deadline: float, *, processes: int = 0, choice: str = "auto"
) -> Iterator[tuple[int, object]]:
    """Yield the number of each task with its result or Failure, as they end; `choice` is of kernels.

    Runs them one after another in this process, or shares them out to others. Nothing begins after the
    deadline, and what runs on is ended shortly after it.
    """
    if not processes:
        for number, task in enumerate(tasks):
            late = time.monotonic() > deadline
            yield number, Failure(LATE, is_late=True) if late else call(task)
        return
    workers, thread = [Worker(choice) for _ in range(processes)], threading.local()
    idle = iter(workers)

    def begin() -> None:
        thread.worker = next(idle)

    def run(number: int) -> tuple[int, object]:
        return number, thread.worker.call(tasks[number], deadline)

    threads = ThreadPoolExecutor(processes, initializer=begin)
    try:
        for done in as_completed([threads.submit(run, number) for number in range(len(tasks))]):
            yield done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()


class Worker:
    """A process, started when it is needed; it ends with this one."""

    GRACE_SECONDS = 20.0  # for a task that began before the deadline

    def __init__(self, choice: str):
        self.choice = choice
        self.pool: ProcessPoolExecutor | None = None

    def end(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            for process in pool._processes.values():
                process.kill()
            pool.shutdown()

    def call(self, task: Task, deadline: float) -> Any:
        """Run a task there, unless the deadline has passed; returns its result or its Failure."""
        if time.monotonic() > deadline:
            return Failure(LATE, is_late=True)
        if self.pool is None:
            spawn = get_context("spawn")
            self.pool = ProcessPoolExecutor(1, spawn, initializer=_begin, initargs=(self.choice,))
        try:
            left = min(deadline + self.GRACE_SECONDS - time.monotonic(), threading.TIMEOUT_MAX)
            outcome, error = self.pool.submit(_call_there, task).result(left)
            if error is None:
                return outcome
            outcome = outcome or error  # what was measured before the error counts
        except TimeoutError:
            outcome = Failure("not done in time", is_late=True)
        except BrokenProcessPool:
            (process,) = self.pool._processes.values()
            process.join(1)
            outcome = Failure(f"{ENDED} {process.exitcode}")
        except KeyboardInterrupt:
            self.end()
            raise
        self.end()
        return outcome


def _begin(choice: str) -> None:
    kernels.use(choice)  # type: ignore[arg-type]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent_process().join()
    os._exit(1)


def _call_there(task: Task) -> tuple[object, object]:
    """Run a task; returns its result or Failure, and a Failure if the GPU runs nothing more here."""
    return call(task), call((_wait, ()))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
