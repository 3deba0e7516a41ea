"""Automations that are refused, and made anew; what they do is in test_server.py and test_serve.py."""

import pytest
from prefect.client.orchestration import get_client

from flows.orchestration.automations import FAILURES, LOST
from tests.commands import refused, run_here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing asked for"),
        (["--webhook", "ftp://127.0.0.1/hook"], "must begin with http:// or https://"),
        (["--webhook", "127.0.0.1/hook"], "must begin with http:// or https://"),
        (["--pretrain-after-drift", "0"], "pretrain_after_drift=0: it must be 1 or more"),
        (["--webhook", "https://127.0.0.1/hook"], "no PREFECT_API_URL"),
    ],
)
def test_requests_that_cannot_work_are_refused(arguments, message):
    refused(run_here("automations", *arguments, PREFECT_API_URL=""), message)


@pytest.mark.slow
def test_an_automation_made_again_replaces_the_first_but_for_lost_runs_of_this_version(
    prefect_server, monkeypatch
):
    def automate(*arguments):
        return run_here("automations", *arguments, **prefect_server)

    with get_client(sync_client=True) as client:
        for port in (1, 2):
            done = automate("--webhook", f"http://127.0.0.1:{port}/hook")
            assert "a message to 127.0.0.1\n" in done.stdout  # the path of such a URL is often a secret
            (made,) = client.read_automations_by_name(FAILURES)
            (action,) = made.actions
            block = client.read_block_document(action.block_document_id, include_secrets=True)
            assert block.data["url"] == f"http://127.0.0.1:{port}/hook"
        client.delete_automation(made.id)  # other tests' runs fail
        before = None
        for _ in range(2):
            assert automate("--lost-runs").returncode == 0
            automations = [one.id for name in LOST for one in client.read_automations_by_name(name)]
            assert len(automations) == len(LOST) and before in (None, automations)
            before = automations
        (name, (events, seconds)), *_ = LOST.items()
        monkeypatch.setitem(LOST, name, (events, seconds + 30))
        assert automate("--lost-runs").returncode == 0
        (newer,) = client.read_automations_by_name(name)
        assert newer.id not in before and newer.trigger.within.total_seconds() == seconds + 30
    refused(automate("--pretrain-after-drift", 5), "no deployment continued-pretraining/default")
