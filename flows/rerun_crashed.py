"""rerun-crashed: run a deployment's crashed run again, as `jixu automations --rerun-crashed` asks for."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, State

from data.errors import InputError
from flows.orchestration import failed, read_all

MOST_RERUNS, HOURS = 3, 6


@flow(name="rerun-crashed", flow_run_name="rerun {run}")
def rerun_crashed(run: UUID) -> State:
    """Run a crashed run again with the same parameters; fail if it has crashed too often.

    Args:
        run: Id of the crashed run.
    """
    with get_client(sync_client=True) as client:
        try:
            crashed = client.read_flow_run(run)
            if crashed.deployment_id is None:
                return failed(InputError(f"{crashed.name} is no deployment's run: run its command again"))
            client.read_deployment(crashed.deployment_id)
        except ObjectNotFound:
            return failed(InputError(f"the server has no run {run}, or its deployment was deleted"))
        crashes = count_crashes(client, crashed)
        if crashes > MOST_RERUNS:
            why = f"{crashed.name} crashed, as {crashes} runs like it in {HOURS} hours: it is not run again"
            return failed(InputError(why))
        again = client.create_flow_run_from_deployment(
            crashed.deployment_id, parameters=resuming(crashed), idempotency_key=f"rerun-{run}"
        )
    return Completed(message=f"{crashed.name} runs again: {again.id}")


def count_crashes(client: SyncPrefectClient, run: FlowRun) -> int:
    """Count the recent crashes of the same deployment with the same parameters, this one too."""
    since = datetime.now(UTC) - timedelta(hours=HOURS)
    alike = {
        "deployment_id": {"any_": [run.deployment_id]},
        "state": {"type": {"any_": ["CRASHED"]}},
        "end_time": {"after_": since},
    }
    crashes = read_all(client.read_flow_runs, flow_run_filter=FlowRunFilter.model_validate(alike))
    return sum(resuming(one) == resuming(run) for one in crashes)


def resuming(run: FlowRun) -> dict[str, Any]:
    """A run's parameters; one that was to begin anew has begun."""
    return {name: "auto" if name == "resume" else value for name, value in run.parameters.items()}
