"""How runs end: with their worker, and with the run that called them."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Crashed, State

from data.workers import end, end_with_parent
from flows.orchestration.logs import is_deployed
from flows.orchestration.servers import STOP_SECONDS

P = ParamSpec("P")
T = TypeVar("T")

WORKER_GONE = "The worker of this run is gone, so the run was ended. Run it again to resume."
CALLER_GONE = "The process of this run is gone. Run it again to resume."
WORKER = "JIXU_WORKER"  # the process id of the worker or runner of a run
RUN_ID = "PREFECT__FLOW_RUN_ID"  # a variable of runs of deployments, set by Prefect
OVERLOOKED = timedelta(seconds=45)  # Prefect kills a cancelled run after 30 seconds
RUNNING = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
UNFINISHED = [*RUNNING, StateType.SCHEDULED, StateType.PAUSED]


def ends_with_its_worker(function: Callable[P, T]) -> Callable[P, T | State]:
    """Terminate a deployment's run, as crashed, when the process that started it dies.

    Otherwise it could be neither cancelled nor reported. Prefect's workers and runners start a run as a child
    of their own, with no shell between.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T | State:
        if not is_deployed():
            return function(*args, **kwargs)
        worker = int(os.environ.get(WORKER, os.getppid()))  # it may have died while this process began
        _keep_pipes_open()
        end_with_parent(worker)
        with suppress(httpx.HTTPError):
            crash_parts_of_lost_runs()  # of other runs: with workers nobody else does
        try:
            outcome = function(*args, **kwargs)
        except BaseException as error:  # Prefect's TerminationSignal, or what it led to
            if os.getppid() != worker:
                return Crashed(message=WORKER_GONE)
            # torch's modes and DuckDB's queries raise errors of their own for it
            if isinstance(error.__context__, TerminationSignal) or "Query interrupted" in str(error):
                raise TerminationSignal(signal.SIGTERM) from None
            raise
        # a training that is asked to stop ends well, as cancelled; others may fail for it
        is_lost = isinstance(outcome, State) and not outcome.is_completed() and os.getppid() != worker
        return Crashed(message=WORKER_GONE) if is_lost else outcome

    return run


def _keep_pipes_open() -> None:
    """Open the read end of stdout and stderr where they are pipes to the worker, until this process ends.

    Without a reader, a line logged after the worker's death raises BrokenPipeError, on which rich exits.
    """
    for number in (1, 2):
        with suppress(OSError):  # closed, or there is no /proc
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)


def _running(client: SyncPrefectClient) -> list[FlowRun]:
    running = FlowRunFilter.model_validate({"state": {"type": {"any_": RUNNING}}})
    return read_all(client.read_flow_runs, flow_run_filter=running)


def read_all(read: Callable[..., Sequence[T]], **filters: object) -> list[T]:
    """Read every page of an answer of Prefect's API."""
    rows: list[T] = []
    while page := read(**filters, offset=len(rows)):
        rows += page
    return rows


def crash_parts_of_lost_runs() -> None:
    """Mark as crashed what a lost run left behind: its tasks, and the flows that it called.

    Prefect marks the run alone.
    """
    with get_client(sync_client=True) as client:
        while parts := [run for run in _running(client) if _is_abandoned(client, run)]:
            for part in parts:
                client.set_flow_run_state(part.id, Crashed(message=CALLER_GONE), force=True)
        crashed = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.CRASHED]}}})
        unfinished = TaskRunFilter.model_validate({"state": {"type": {"any_": UNFINISHED}}})
        left = read_all(client.read_task_runs, flow_run_filter=crashed, task_run_filter=unfinished)
        for task in left:
            client.set_task_run_state(task.id, Crashed(message=CALLER_GONE), force=True)


def _is_abandoned(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether a flow was called by a run that has ended."""
    if run.parent_task_run_id is None:
        return False
    call = TaskRunFilter.model_validate({"id": {"any_": [run.parent_task_run_id]}})
    callers = client.read_flow_runs(task_run_filter=call)
    return all(caller.state is not None and caller.state.is_final() for caller in callers)


def end_runs(is_due: Callable[[FlowRun], bool]) -> None:
    """End due runs of this machine's runner, as cancelled or crashed; not those of workers and commands."""
    with get_client(sync_client=True) as client:
        ours = [run for run in _running(client) if run.deployment_id and run.work_pool_name is None]
        due = {str(run.id) for run in ours if is_due(run)}
        processes = psutil.process_iter(["environ"])  # and their children, which inherit the variable
        end([one for one in processes if (one.info["environ"] or {}).get(RUN_ID) in due], STOP_SECONDS)
        for run in _running(client):
            if run.state is not None and str(run.id) in due:
                state: State = Cancelled() if run.state.is_cancelling() else Crashed(message=CALLER_GONE)
                client.set_flow_run_state(run.id, state)


def is_overlooked(run: FlowRun) -> bool:
    """Whether a run should have been cancelled long ago.

    Prefect's runner stops listening for cancels once the server has been away for three of its polls.
    """
    state = run.state
    return state is not None and state.is_cancelling() and datetime.now(UTC) - state.timestamp >= OVERLOOKED
