"""Automations that are made anew; what they do is in test_server.py and test_serve.py."""

from unittest.mock import Mock

import pytest
from httpx import ReadTimeout
from prefect.client.orchestration import get_client

from flows.orchestration.automations import FAILURES, LOST
from tests.commands import refused, run_here


@pytest.mark.slow
def test_an_automation_made_again_replaces_one_that_differs(prefect_server, monkeypatch):
    def automate(*arguments):
        return run_here("automations", *arguments, **prefect_server)

    with get_client(sync_client=True) as client:
        for port in (1, 2):
            done = automate("--webhook", f"http://127.0.0.1:{port}/hook")
            assert "a message to 127.0.0.1\n" in done.stdout  # the path of such a URL is often a secret
            (made,) = client.read_automations_by_name(FAILURES)
            assert made.trigger.expect == {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}
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


def test_a_server_that_goes_away_meanwhile_is_told_in_a_line(monkeypatch):
    is_gone = Mock(side_effect=ReadTimeout("The read operation timed out"))
    monkeypatch.setattr("flows.orchestration.automations.server_version", is_gone)
    done = run_here("automations", "--lost-runs", PREFECT_API_URL="http://127.0.0.1:9/api")
    refused(done, "Prefect's server does not answer any more")
