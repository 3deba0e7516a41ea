"""automations: what Prefect's server does when a run fails or is lost, or when a corpus has drifted.

The UI (Automations) shows, pauses and removes them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import HttpUrl

from data.errors import InputError
from data.workspace import local_folder
from flows.orchestration.command import set_up_prefect
from flows.orchestration.servers import server_version

if TYPE_CHECKING:
    from prefect.automations import Automation
    from prefect.events.actions import RunDeployment

FAILURES, DRIFT = "jixu: report failed runs", "jixu: pretrain after drift"
CRASHES = "jixu: run crashed trainings again"
# after which events of a run another should follow, and within how many seconds; heartbeats come every 30
# seconds, and a run is Pending while its process imports
LOST = {
    "jixu: mark lost runs as crashed": ({"heartbeat"}, 90),
    "jixu: mark runs that never begin as crashed": ({"Pending", "Submitting", "InfrastructurePending"}, 600),
}
ENDS = ("Completed", "Failed", "Cancelled", "Crashed")
SIGNS_OF_LIFE = ("heartbeat", "Running", "AwaitingConcurrencySlot", *ENDS)
BLOCK = "jixu-failures"
# chat systems take one line of text
MESSAGE = (
    "{{ flow.name }}: {{ flow_run.name }} is {{ flow_run.state.name }}. {{ flow_run.state.message }} "
    "{{ flow_run|ui_url }}"
)


def automations(
    *,
    webhook: str | None = None,
    pretrain_after_drift: int | None = None,
    lost_runs: bool = False,
    rerun_crashed: bool = False,
) -> None:
    """Let the server report failed runs, mark lost ones, run trainings again.

    Args:
        webhook: URL that gets a message when a run fails or crashes.
        pretrain_after_drift: Steps to pretrain for when a refresh reports drift (its --drift.event-if).
        lost_runs: Mark a run as crashed when its heartbeats stop, as `jixu serve` does.
        rerun_crashed: Run a crashed training again, which resumes it, at most three times in six hours.
    """
    if not (webhook or pretrain_after_drift is not None or lost_runs or rerun_crashed):
        raise InputError(
            "nothing asked for: pass --webhook, --pretrain-after-drift, --lost-runs, or --rerun-crashed"
        )
    try:
        host = HttpUrl(webhook).host if webhook else None
    except ValueError:
        raise InputError(f"webhook={webhook!r}: it must begin with http:// or https:// and a host") from None
    if pretrain_after_drift is not None and pretrain_after_drift < 1:
        raise InputError(f"pretrain_after_drift={pretrain_after_drift}: it must be 1 or more")
    if not os.environ.get("PREFECT_API_URL"):
        raise InputError("no PREFECT_API_URL: automations are a server's; make serve prints its address")
    set_up_prefect(local_folder())
    server_version()  # refuses a server that cannot be used
    if webhook:
        replace_automation(report_failures(webhook))
        print(f"a failed or crashed run: a message to {host}")
    if pretrain_after_drift is not None:
        replace_automation(pretrain_on_drift(pretrain_after_drift))
        print(f"a refresh that reports drift: {pretrain_after_drift:,} steps of pretraining")
    if lost_runs:
        add_lost_runs()
        print("a run whose heartbeats stop: marked as crashed")
    if rerun_crashed:
        replace_automation(rerun_trainings())
        print("a crashed training: run again, three times in six hours at most")


def report_failures(url: str) -> Automation:
    """POST {"text": MESSAGE} to a URL when a flow run fails or crashes."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import SendNotification

    block = CustomWebhookNotificationBlock(name=BLOCK, url=url, json_data={"text": "{{body}}"})
    document = block.save(BLOCK, overwrite=True)
    return _automation(
        FAILURES,
        "Sends a message to a webhook when a run fails or crashes. 运行失败时发送通知",
        SendNotification(block_document_id=document, subject="jixu", body=MESSAGE),
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
    )


def pretrain_on_drift(steps: int) -> Automation:
    """Continue pretraining from a corpus's newest checkpoint when a refresh emits its event.

    Raise InputError if the server does not have the deployment.
    """
    told = {"corpus": "corpus", "workspace": "workspace", "init": "checkpoint"}
    parameters = {name: _template(f"event.payload.{key}") for name, key in told.items()}
    return _automation(
        DRIFT,
        "Pretrains on a corpus whose new documents differ. 语料漂移后继续预训练",
        _run_deployment("continued-pretraining/default", {**parameters, "steps": steps}),
        expect={"jixu.corpus.drifted"},
        match={"prefect.resource.id": "jixu.corpus.*", "jixu.has-checkpoint": "yes"},
    )


def rerun_trainings() -> Automation:
    """Run crashed runs of training deployments again, by the deployment rerun-crashed, which counts them.

    Raise InputError if the server does not have it.
    """
    return _automation(
        CRASHES,
        "Runs a crashed training again, three times in six hours at most. 训练崩溃后自动续训",
        _run_deployment("rerun-crashed/default", {"run": _template("flow_run.id")}),
        expect={"prefect.flow-run.Crashed"},
        match_related={"prefect.resource.id": "prefect.tag.training"},
    )


def _automation(name: str, description: str, action: Any, **trigger: Any) -> Automation:
    """An automation on an event of any run, or on what `trigger` says."""
    from prefect.automations import Automation, EventTrigger

    usual = {"match": {"prefect.resource.id": "prefect.flow-run.*"}, "posture": "Reactive", "threshold": 1}
    made = EventTrigger.model_validate(usual | trigger)
    return Automation(name=name, description=description, trigger=made, actions=[action])


def _template(expression: str) -> dict[str, str]:
    return {"__prefect_kind": "jinja", "template": f"{{{{ {expression} }}}}"}


def _run_deployment(name: str, parameters: dict[str, Any]) -> RunDeployment:
    from prefect.client.orchestration import get_client
    from prefect.events.actions import RunDeployment
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name(name)
    except ObjectNotFound:
        raise InputError(f"the server has no deployment {name}: start it by make serve") from None
    return RunDeployment(deployment_id=deployment.id, parameters=parameters)


def add_lost_runs() -> None:
    """Have the server mark lost runs as crashed (docs.prefect.io: detect zombie flows).

    Automations that exist stay, if no older jixu made them in another way: they know which runs were alive
    before the server was restarted.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState

    from flows.orchestration.lifecycle import CALLER_GONE

    for name, (events, seconds) in LOST.items():
        lost = _automation(
            name,
            "Marks runs whose process is gone as crashed. 标记丢失的运行",
            ChangeFlowRunState(state=StateType.CRASHED, message=CALLER_GONE),
            after={f"prefect.flow-run.{event}" for event in events},
            expect={f"prefect.flow-run.{sign}" for sign in SIGNS_OF_LIFE},
            for_each={"prefect.resource.id"},
            posture="Proactive",
            within=seconds,
        )
        with get_client(sync_client=True) as client:
            made = [one.trigger.model_dump(exclude={"id"}) for one in client.read_automations_by_name(name)]
        if made != [lost.trigger.model_dump(exclude={"id"})]:
            replace_automation(lost)


def replace_automation(automation: Automation) -> None:
    """Create an automation in place of any of the same name."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(automation.name):
            client.delete_automation(old.id)
    automation.create()
