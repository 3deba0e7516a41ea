"""Processes that run functions for `benchmarks.gpu`: side by side, and apart from each other.

After an error on the GPU a process does not recover, and a kernel may never end: each function that fails so
takes its own process along, and the next one gets a new process.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

import kernels

Task = tuple[Callable[..., Any], tuple[object, ...]]
LATE = "no time left"


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
    except torch.OutOfMemoryError as error:
        return Failure(reason(error), is_late=True)
    except Exception as error:
        return Failure(reason(error))


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
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)

    def serve() -> None:
        with Worker(choice) as worker:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                done.put((number, worker.call(tasks[number], deadline)))

    for _ in range(min(processes, len(tasks))):
        threading.Thread(target=serve, daemon=True).start()
    for _ in tasks:
        yield done.get()


class Worker:
    """A process, started when it is needed; it ends with this one."""

    GRACE_SECONDS = 20.0  # for a task that began before the deadline

    def __init__(self, choice: str):
        self.choice = choice
        self.process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.choice), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is noticed here

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None

    def call(self, task: Task, deadline: float) -> Any:
        """Run a task there, unless the deadline has passed; returns its result or its Failure."""
        if time.monotonic() > deadline:
            return Failure(LATE, is_late=True)
        try:
            if self.process is None:
                self._begin()
            self.pipe.send(task)
            if not self.pipe.poll(deadline + self.GRACE_SECONDS - time.monotonic()):
                self._end()
                return Failure("not done in time", is_late=True)
            result, is_sound = self.pipe.recv()
        except (EOFError, OSError):
            status = None
            if self.process is not None:
                self.process.join(1)
                status = self.process.exitcode
            self._end()
            return Failure(f"its process ended with status {status}")
        if not is_sound:
            self._end()
        return result


def _serve(pipe: Connection, choice: str) -> None:
    kernels.use(choice)  # type: ignore[arg-type]
    while True:
        try:
            task = pipe.recv()
        except EOFError:  # the process that asks has ended
            return
        result = call(task)
        try:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            pipe.send((result, True))
        except RuntimeError as error:  # of the GPU
            pipe.send((Failure(reason(error)), False))
