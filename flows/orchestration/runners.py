"""Where sources are read and shards built: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from data.errors import InputError
from data.refresh import Plan
from data.storage import is_remote
from data.workers import worker_pool

if TYPE_CHECKING:
    from prefect import Task
    from prefect.futures import PrefectFuture

# of a task made by `flows.steps.step`, its label, a function and the function's arguments
Submit = Callable[..., "PrefectFuture"]
Runner = Literal["processes", "dask"]
CONNECT_SECONDS = 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@contextmanager
def open_runner(runner: Runner, workers: int, dask_address: str | None) -> Iterator[tuple[Submit, int]]:
    """Gives `submit(step, label, function, *arguments)`, and how many of them run at once. Tasks that are not
    done when the block ends are cancelled. Raises InputError where there is no cluster.
    """
    if runner == "dask":
        with _dask(dask_address) as submit_and_workers:
            yield submit_and_workers
        return
    is_over = threading.Event()
    with worker_pool(workers) as pool, _without_warnings_of_timeouts():

        def submit(step: Task, label: str, function: Callable, *arguments: object) -> PrefectFuture:
            # at once, so that work is done in the order in which it is given, the largest pieces first:
            # tasks begin in any order, and after some requests
            begun: list[Future] = []
            with suppress(BrokenExecutor):  # then each task says so
                begun.append(pool.submit(function, *arguments))

            def work() -> object:
                try:
                    return _wait(begun.pop() if begun else pool.submit(function, *arguments))
                except BrokenExecutor:
                    # what ends a run may end the processes first
                    if is_over.wait(1):
                        raise CancelledError from None
                    raise

            return step.submit(label, work)

        try:
            yield submit, workers
        finally:
            is_over.set()


@contextmanager
def _without_warnings_of_timeouts() -> Iterator[None]:
    """Prefect warns in each task that its timeout interrupts nothing that blocks; `_wait` does not block."""

    def is_another(record: logging.LogRecord) -> bool:
        return "Timeouts in worker threads" not in str(record.msg)

    logger = logging.getLogger("prefect.task_runs")
    logger.addFilter(is_another)
    try:
        yield
    finally:
        logger.removeFilter(is_another)


def _wait(future: Future) -> object:
    # a task that is out of time is told so between two waits, never in one
    while True:
        try:
            return future.result(timeout=1)
        except TimeoutError:
            if future.done():
                return future.result()


@contextmanager
def _dask(address: str) -> Iterator[tuple[Submit, int]]:
    """Tasks run on the cluster by Prefect's own runner, their states told by the workers."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_dask import DaskTaskRunner

    options = {"timeout": CONNECT_SECONDS, "set_as_default": False}
    with DaskTaskRunner(address=address, client_kwargs=options) as runner:
        try:
            runner.client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (TimeoutError, OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler with workers at {address}: {' '.join(str(error).split())[:200]}"
            ) from None
        with get_client(sync_client=True) as api:
            # workers would start a server of their own where this process has a short-lived one
            server = {PREFECT_API_URL: str(api.api_url)}

        def submit(step: Task, label: str, function: Callable, *arguments: object) -> PrefectFuture:
            with temporary_settings(server):
                return runner.submit(step, {"label": label, "work": partial(function, *arguments)})

        yield submit, sum(runner.client.nthreads().values())


def check_runner(runner: Runner, dask_address: str | None, plan: Plan | None = None) -> None:
    """Raise InputError for an address without Dask, none with it, and what its workers cannot reach."""
    if (runner == "dask") != bool(dask_address):
        raise InputError("runner dask and a dask_address, such as tcp://10.0.0.1:8786, belong together")
    if runner == "processes":
        return
    server = urlsplit(os.environ.get("PREFECT_API_URL", "http://127.0.0.1"))
    if server.hostname in LOOPBACK and urlsplit(dask_address).hostname not in LOOPBACK:
        raise InputError(
            f"workers of {dask_address} tell Prefect's server of their tasks: set PREFECT_API_URL to one "
            "that every machine reaches"
        )
    if plan is not None and (relative := _relative_paths(plan)):
        raise InputError(
            f"{relative[0]}: on a Dask cluster paths must be absolute, and on storage that every worker has"
        )


def _relative_paths(plan: Plan) -> Sequence[str]:
    settings = plan.settings
    named = [settings.workspace, plan.tokenizer_path, *settings.dictionary, *settings.guard.files]
    named += [file.uri for file in plan.files if not is_remote(file.uri)]
    named += [settings.quality.blocklist] if settings.quality.blocklist else []
    return [str(path) for path in named if not Path(path).is_absolute()]
