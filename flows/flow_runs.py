"""Flow runs of this machine's server: those whose process is gone, and those to end before it does."""

from __future__ import annotations

import time

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Crashed

_BEGUN = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def _begun_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs of deployments that were begun, by what the server knows; not those of commands."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN))
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states))
    return [run for run in found if run.deployment_id]


def mark_crashed() -> list[str]:
    """Mark runs whose process is gone as crashed, as after a loss of power; returns their names."""
    with get_client(sync_client=True) as client:
        begun, at_work = _begun_runs(client), _at_work()
        gone = [run for run in begun if str(run.id) not in at_work]
        for run in gone:
            message = "The process of this run is gone. Run it again to go on."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return [run.name for run in gone]


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
