"""Flow runs of this machine's server: those whose process is gone, and those to end before it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Crashed

T = TypeVar("T")
_BEGUN = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_UNFINISHED = [*_BEGUN, StateType.SCHEDULED, StateType.PAUSED]


def _all_begun(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs that were begun, by what the server knows."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN))
    return _all(client.read_flow_runs, flow_run_filter=FlowRunFilter(state=states))


def _begun_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Those of deployments, not of commands."""
    return [run for run in _all_begun(client) if run.deployment_id]


def _lost_parts(client: SyncPrefectClient) -> list[FlowRun]:
    """Those of flows that another run called, and that run has ended: they had one process."""
    return [run for run in _all_begun(client) if run.parent_task_run_id and not _is_called(client, run)]


def _is_called(client: SyncPrefectClient, part: FlowRun) -> bool:
    """Whether the run that called it still waits for it; one that was deleted does not."""
    called = TaskRunFilter(id=TaskRunFilterId(any_=[part.parent_task_run_id]))
    callers = client.read_flow_runs(task_run_filter=called)
    return any(not run.state.is_final() for run in callers)


def count_deployments() -> int:
    """How many deployments the server knows."""
    with get_client(sync_client=True) as client:
        return len(_all(client.read_deployments))


def mark_crashed() -> list[str]:
    """Mark runs whose process is gone as crashed, as after a loss of power, and flows that they called;
    returns the names of the first.
    """
    message = "The process of this run is gone. Run it again to go on."
    with get_client(sync_client=True) as client:
        begun, at_work = _begun_runs(client), _at_work()
        gone = [run for run in begun if str(run.id) not in at_work]
        crash(client, gone, message)
        while parts := _lost_parts(client):  # those that parts called are found when the parts have ended
            crash(client, parts, message)
        # a worker that sees a run of its die marks the run alone
        states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED]))
        _crash_tasks(client, FlowRunFilter(state=states), message)
    return [run.name for run in gone]


def crash(client: SyncPrefectClient, runs: Sequence[FlowRun], message: str) -> None:
    """Mark runs as crashed, with those of their tasks that have not ended."""
    for run in runs:
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        _crash_tasks(client, FlowRunFilter(id=FlowRunFilterId(any_=[run.id])), message)


def _crash_tasks(client: SyncPrefectClient, runs: FlowRunFilter, message: str) -> None:
    states = TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNFINISHED))
    unfinished = TaskRunFilter(state=states)
    for task in _all(client.read_task_runs, flow_run_filter=runs, task_run_filter=unfinished):
        client.set_task_run_state(task.id, Crashed(message=message), force=True)


def _all(read: Callable[..., list[T]], **filters: object) -> list[T]:
    """What a server has of something, which it gives page by page."""
    found: list[T] = []
    while page := read(**filters, offset=len(found)):
        found += page
    return found


def _at_work() -> set[str | None]:
    """Ids of the runs that processes of this machine are at."""
    return {_run_of(process) for process in psutil.process_iter(["environ"])}


def _processes_of(runs: Collection[str]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["environ"]) if _run_of(process) in runs]


def _run_of(process: psutil.Process) -> str | None:
    """The id that Prefect tells each process that it begins for a run."""
    return (process.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID")


def cancel_running(wait_seconds: float) -> None:
    """Have the worker cancel its runs, and wait until it has: a training writes a checkpoint first."""
    with get_client(sync_client=True) as client:
        runs = _begun_runs(client)
        for run in runs:
            client.set_flow_run_state(run.id, Cancelling(message="The server is being stopped."))
        until = time.monotonic() + wait_seconds
        while runs and time.monotonic() < until:
            runs = _begun_runs(client)
            time.sleep(0.5)


def end_without_worker(wait_seconds: float) -> list[str]:
    """Wait for the runs of a worker that is gone to end by themselves (see `lifecycle`), kill those that do
    not, and mark those that could not tell of it as crashed; returns the names of the last.
    """
    with get_client(sync_client=True) as client:
        runs = {str(run.id) for run in _begun_runs(client)}
    until = time.monotonic() + wait_seconds
    while (left := _processes_of(runs)) and time.monotonic() < until:
        time.sleep(0.5)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    return mark_crashed()
