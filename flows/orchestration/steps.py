"""Work as Prefect tasks: what an orchestrator adds (name, state, retry) and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.futures import PrefectFuture
from prefect.states import Cancelled

from data.errors import InputError
from data.refresh import Work, collect
from data.workers import worker_pool
from flows.orchestration.artifacts import begin_progress
from flows.orchestration.dask import Submit, open_cluster

HUNG = "a task took longer than --running.task-hours and counts as hung: is its source out of reach?"
T = TypeVar("T")
Item = TypeVar("Item")


def _call(label: str, work: Callable[[], object]) -> object:
    # the work is a closure: Prefect neither inspects nor keeps what it closes over
    try:
        return work()
    except CancelledError:
        return Cancelled(message="The run ended before it was done.")
    except RuntimeError as error:
        if "Query interrupted" in str(error):  # Ctrl-C, as DuckDB reports it
            raise KeyboardInterrupt from None
        raise


def _is_worth_retrying(task: Task, run: TaskRun, state: State) -> bool:
    """Not if the input was refused, nor if the pool lost a worker."""
    error = state.result(raise_on_failure=False)
    # InputError and ConfigError are ValueErrors
    return isinstance(error, Exception) and not isinstance(error, ValueError | BrokenExecutor)


class Step(Protocol):
    """A task that runs a piece of work under a label."""

    def __call__(self, label: str, work: Callable[[], T]) -> T: ...

    def submit(self, label: str, work: Callable[[], T]) -> PrefectFuture[T]: ...


def step(name: str, *, retries: int = 0) -> Step:
    """Make a task that runs `work()` with a label people read, and retries only where that can help."""
    made: Any = task(
        name=name,
        task_run_name=f"{name} {{label}}",
        retries=retries,
        retry_delay_seconds=5,
        retry_condition_fn=_is_worth_retrying,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(_call)
    return made


@dataclass(frozen=True)
class PrefectRunner:
    """Runs the stages and batches of a refresh as Prefect tasks: a `data.refresh.Runner`."""

    submit: Submit  # batches go through it to processes or a cluster
    workers: int
    timeout_seconds: float | None = None  # for a batch, once those before it are done

    def stage(self, name: str, label: str, work: Callable[[], T]) -> T:
        result: Any = step(name)(label, work)
        return result

    def map(self, work: Work[Item, T]) -> list[T]:
        batch_step = step(work.name, retries=1)
        futures = [
            self.submit(batch_step, batch.label, partial(work.function, batch.items))
            for batch in work.batches
        ]
        on_progress = None
        if len(futures) > 1:
            on_progress = begin_progress(work.label, f"{work.items:,} {work.progress}")
        return collect(work, map(self._result, futures), on_progress)

    def _result(self, future: PrefectFuture) -> Any:
        try:
            return future.result(timeout=self.timeout_seconds)
        except TimeoutError:
            if future.state.is_final():  # of the work itself
                raise
            raise InputError(HUNG) from None


@contextmanager
def open_runner(
    workers: int, dask_address: str | None = None, timeout_seconds: float | None = None
) -> Iterator[PrefectRunner]:
    """Run batches in processes of this machine, or on a Dask cluster if there is an address.

    Tasks that are not done when the block ends are cancelled. Raises InputError if there is no cluster.
    """
    opened = open_cluster(dask_address) if dask_address else _open_processes(workers)
    with opened as (submit, count):
        yield PrefectRunner(submit, count, timeout_seconds)


@contextmanager
def _open_processes(workers: int) -> Iterator[tuple[Submit, int]]:
    is_over = threading.Event()
    with worker_pool(workers) as pool:

        def submit(task: Step, label: str, work: Callable[[], object]) -> PrefectFuture:
            # goes to the pool at once, so that work starts in the order it was submitted, the largest first:
            # Prefect starts tasks in any order, and after several requests
            futures: list[Future] = []
            with suppress(BrokenExecutor):  # each task reports it
                futures.append(pool.submit(work))

            def wait() -> object:
                try:
                    return (futures.pop() if futures else pool.submit(work)).result()
                except BrokenExecutor:
                    # whatever ends a run may end its processes first
                    if is_over.wait(1):
                        raise CancelledError from None
                    raise

            return task.submit(label, wait)

        try:
            yield submit, workers
        finally:
            is_over.set()
