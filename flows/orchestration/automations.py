"""automations: have Prefect's server call a webhook when a run fails, and pretrain when a corpus has drifted.

Made anew under the same names each time; the UI (Automations) shows, pauses and removes them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from data.errors import InputError
from flows.orchestration.command import EXIT_USER_ERROR, set_up_prefect
from flows.orchestration.servers import server_version

if TYPE_CHECKING:
    from prefect.automations import Automation

FAILURES, DRIFT = "jixu: tell of failed runs", "jixu: pretrain after drift"
BLOCK = "jixu-failures"
# what chat systems take: one line of text
MESSAGE = (
    "{{ flow.name }}: {{ flow_run.name }} is {{ flow_run.state.name }}. {{ flow_run.state.message }} "
    "{{ flow_run|ui_url }}"
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jixu automations",
        description="Automations of the server at PREFECT_API_URL (make serve prints it).",
    )
    parser.add_argument("--webhook", metavar="URL", help="send a message there when a run fails or crashes")
    parser.add_argument(
        "--pretrain-after-drift",
        type=int,
        metavar="STEPS",
        help="run continued-pretraining/default when a refresh tells of drift (its --event-if)",
    )
    return parser


def tell_of_failures(url: str) -> Automation:
    """POST {"text": MESSAGE} to a URL when a flow run fails or crashes."""
    from prefect.automations import Automation, EventTrigger
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import SendNotification

    block = CustomWebhookNotificationBlock(name=BLOCK, url=url, json_data={"text": "{{body}}"})
    document = block.save(BLOCK, overwrite=True)
    return Automation(
        name=FAILURES,
        description="Sends a message to a webhook when a run fails or crashes. 运行失败时发送通知",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            posture="Reactive",
            threshold=1,
        ),
        actions=[SendNotification(block_document_id=document, subject="jixu", body=MESSAGE)],
    )


def pretrain_after_drift(steps: int) -> Automation:
    """Go on with pretraining from a corpus's newest checkpoint when a refresh has emitted its event."""
    from prefect.automations import Automation, EventTrigger
    from prefect.client.orchestration import get_client
    from prefect.events.actions import RunDeployment

    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("continued-pretraining/default")

    def payload(name: str) -> dict[str, str]:
        return {"__prefect_kind": "jinja", "template": f"{{{{ event.payload.{name} }}}}"}

    parameters = {
        "corpus": payload("corpus"),
        "workspace": payload("workspace"),
        "init": payload("checkpoint"),
    }
    return Automation(
        name=DRIFT,
        description="Pretrains on a corpus whose new documents differ. 语料漂移后继续预训练",
        trigger=EventTrigger(
            expect={"jixu.corpus.drifted"},
            match={"prefect.resource.id": "jixu.corpus.*", "jixu.has-checkpoint": "yes"},
            posture="Reactive",
            threshold=1,
        ),
        actions=[RunDeployment(deployment_id=deployment.id, parameters={**parameters, "steps": steps})],
    )


def replace_automation(automation: Automation) -> None:
    """Create an automation in place of any of the same name."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(automation.name):
            client.delete_automation(old.id)
    automation.create()


def make_automations(arguments: Sequence[str]) -> int:
    """Make what is asked for. Raises InputError for a URL that is none, and without a server."""
    given = make_parser().parse_args(arguments)
    if not given.webhook and given.pretrain_after_drift is None:
        raise InputError("nothing asked for: pass --webhook, --pretrain-after-drift, or both")
    if given.webhook and urlsplit(given.webhook).scheme not in ("http", "https"):
        raise InputError(f"webhook={given.webhook!r}: it must begin with http:// or https://")
    if given.pretrain_after_drift is not None and given.pretrain_after_drift < 1:
        raise InputError(f"pretrain_after_drift={given.pretrain_after_drift}: it must be 1 or more")
    if server_version() is None:  # it refuses one that is of no use
        raise InputError("no PREFECT_API_URL: automations are a server's; make serve prints its address")
    from prefect.exceptions import ObjectNotFound

    try:
        if given.webhook:
            replace_automation(tell_of_failures(given.webhook))
        if given.pretrain_after_drift is not None:
            replace_automation(pretrain_after_drift(given.pretrain_after_drift))
    except ObjectNotFound:
        raise InputError(
            "the server has no deployment continued-pretraining/default: start it by make serve"
        ) from None
    return 0


def main() -> int:
    from data.workspace import default_workspace

    try:
        if os.environ.get("PREFECT_API_URL"):
            set_up_prefect(default_workspace())
        return make_automations(sys.argv[1:])
    except InputError as error:
        print(f"automations: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    raise SystemExit(main())
