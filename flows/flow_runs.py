"""Flow runs of this machine's server: those whose process is gone, and those to end before it does."""

from __future__ import annotations

import subprocess
import time

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Crashed

_BEGUN = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def _begun_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs that a worker began, by what the server knows; not those of commands."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN))
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states))
    return [run for run in found if run.infrastructure_pid]


def mark_crashed() -> list[str]:
    """Mark runs whose process is gone as crashed, as after a loss of power; returns their names."""
    with get_client(sync_client=True) as client:
        gone = [run for run in _begun_runs(client) if not _is_alive(str(run.infrastructure_pid))]
        for run in gone:
            message = f"The process {run.infrastructure_pid} of this run is gone. Run it again to go on."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return [run.name for run in gone]


def _is_alive(pid: str) -> bool:
    """Whether the process runs a flow; another program may have its number by now."""
    pid = pid.rpartition(":")[2]  # some workers put the host before it
    listed = subprocess.run(["ps", "-p", pid, "-o", "args="], capture_output=True, text=True)
    return "prefect" in listed.stdout


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
