"""The runner of `jixu serve`: makes the deployments of prefect.yaml, starts their runs, sees to their end.

python -m flows.orchestration.runner PARENT LIMIT, the process id of `jixu serve` and the most runs at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from typing import Any

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Schedule
from prefect.utilities.callables import ParameterSchema
from prefect.utilities.schema_tools import validate
from pydantic import ValidationError

from data.workers import end, end_with_parent
from flows.orchestration.automations import add_lost_runs
from flows.orchestration.lifecycle import WORKER, crash_parts_of_lost_runs, end_runs, is_overlooked
from flows.orchestration.serve import read_declared, show
from flows.orchestration.servers import STOP_SECONDS

SETTLE_SECONDS = 30
Served = dict[tuple[str | None, str], DeploymentResponse]


class ClosedSchema(ParameterSchema):
    """The schema of a deployment's parameters, with no others."""

    additionalProperties: bool


def run_deployments(limit: int) -> None:
    """Run the deployments until SIGTERM, on which their runs are cancelled."""
    add_lost_runs()
    end_runs(lambda run: True)  # an earlier runner left them
    # where the runner makes a folder in runner_storage, which in /tmp belongs to the first user that had one
    tempfile.tempdir = os.environ["PREFECT_HOME"]
    runner = Runner(limit=limit, pause_on_shutdown=False)
    served = read_served()
    for entry in read_declared():
        add_deployment(runner, entry, served)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # in a thread, where Prefect takes no signals: on SIGTERM it would wait for runs that it cannot cancel
    threading.Thread(target=_start, args=(runner,), daemon=True).start()
    announce()
    while not stopping.wait(SETTLE_SECONDS):
        with suppress(httpx.HTTPError):
            end_runs(is_overlooked)
            crash_parts_of_lost_runs()
    if runner.started:
        # it cancels its runs, one after the other; those that wait are begun by the next `jixu serve`
        with suppress(TimeoutError):
            runner.execute_in_background(runner.astop).result(STOP_SECONDS)
    end(psutil.Process().children(), STOP_SECONDS)
    os._exit(0)  # at once, for the thread


def add_deployment(runner: Runner, entry: dict[str, Any], served: Served) -> None:
    """Serve a deployment, or say what is wrong with its entry in prefect.yaml: the others are served."""
    try:
        runner.add_deployment(make_deployment(entry, served))
    except Exception as error:
        fault: Any = {"loc": (), "msg": str(error)}
        cause: BaseException | None = error
        while cause and not isinstance(cause, httpx.HTTPError):
            cause = cause.__cause__
        if isinstance(error, ValidationError):
            (fault, *_) = error.errors()
        elif cause:
            if not isinstance(cause, httpx.HTTPStatusError) or cause.response.status_code >= 500:
                raise
            answer = cause.response.json()
            (fault, *_) = answer.get("exception_detail", [fault | {"msg": answer.get("detail", str(error))}])
        name = f"{str(entry.get('entrypoint')).rpartition(':')[2].replace('_', '-')}/{entry.get('name')}"
        place = ".".join(str(part) for part in fault["loc"] if part != "body")
        why = ": ".join(filter(None, [place, fault["msg"].replace("Value error, ", "")]))  # pydantic's
        show(f"{name} is not served: {why}: correct it in prefect.yaml or in the UI")


def _start(runner: Runner) -> None:
    try:
        asyncio.run(runner.start())
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # `jixu serve` starts the next one


def read_served() -> Served:
    """Return the deployments that the server has, by flow and name."""
    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        return {(flows.get(one.flow_id), one.name): one for one in client.read_deployments()}


def make_deployment(entry: dict[str, Any], served: Served) -> RunnerDeployment:
    """Return a deployment of prefect.yaml. One that the server has keeps the parameters, the schedules and
    the pause that it has there, until those of the file change.
    """
    limit = entry.get("concurrency_limit")
    given = json.dumps([entry.get("parameters"), entry.get("schedules")], sort_keys=True)
    deployment = RunnerDeployment.from_entrypoint(
        entry["entrypoint"],
        name=entry["name"],
        description=entry.get("description"),
        version=hashlib.sha256(given.encode()).hexdigest()[:8],
        tags=entry.get("tags"),
        parameters=entry.get("parameters"),
        schedules=[Schedule(**one) for one in entry.get("schedules", [])],
        concurrency_limit=ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
    )
    before = served.get((deployment.flow_name, deployment.name))
    if before and before.version == deployment.version:
        deployment.parameters, deployment.paused = before.parameters, before.paused
        made = DeploymentScheduleCreate.model_validate
        deployment.schedules = [made(one, from_attributes=True) for one in before.schedules]
    # so that a name that is no parameter's is refused, where its runs would crash
    schema = deployment._parameter_openapi_schema.model_dump(exclude_unset=True)
    closed = ClosedSchema(**schema, additionalProperties=False)
    deployment._parameter_openapi_schema = closed
    for number, one in enumerate(deployment.schedules or ()):  # whose parameters the server does not check
        for fault in validate(one.parameters or {}, closed.model_dump(), ignore_required=True):
            raise ValueError(f"schedules.{number}.parameters: {fault.message}")
    # set, so that a deployment that was in a work pool leaves it
    deployment.work_pool_name = deployment.work_queue_name = None
    return deployment


def announce() -> None:
    """Print the schedules that are off, and where the server is."""
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
            off = (one.slug or one.id for one in deployment.schedules if not one.active)
            for schedule in off:
                show(f"schedule {schedule} of {name} is not active: activate it in the UI (Deployments)")
    api = os.environ["PREFECT_API_URL"]
    show(
        f"jixu is served at {api.removesuffix('/api')} (Ctrl-C stops it); in other shells:\n"
        f"  export PREFECT_API_URL={api}"
    )


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)  # its runs notice
    os.environ[WORKER] = str(os.getpid())
    run_deployments(int(sys.argv[2]))
