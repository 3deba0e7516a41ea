"""Flow runs of this machine's server: those whose process is gone, and those to end before it does."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Crashed

_BEGUN = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def _all_begun(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs that were begun, by what the server knows."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN))
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states))


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


def mark_crashed() -> list[str]:
    """Mark runs whose process is gone as crashed, as after a loss of power, and flows that they called;
    returns the names of the first.
    """
    with get_client(sync_client=True) as client:
        begun, at_work = _begun_runs(client), _at_work()
        gone = [run for run in begun if str(run.id) not in at_work]
        _crash(client, gone)
        while parts := _lost_parts(client):  # those that parts called are found when the parts have ended
            _crash(client, parts)
    return [run.name for run in gone]


def _crash(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    for run in runs:
        message = "The process of this run is gone. Run it again to go on."
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def _at_work() -> set[str | None]:
    """Ids of the runs that processes of this machine are at: Prefect tells each its own."""
    processes = psutil.process_iter(["environ"])
    return {(process.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID") for process in processes}


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
