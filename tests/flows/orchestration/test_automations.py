"""Automations that are refused, and made anew; what they do is in test_server.py and test_serve.py."""

import pytest

from flows.orchestration.automations import FAILURES, LOST, main


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
def test_requests_that_cannot_work_are_refused(arguments, message, monkeypatch, capsys):
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_an_automation_made_again_replaces_the_first_but_for_lost_runs_of_this_version(
    prefect_server, monkeypatch, capsys
):
    from prefect.client.orchestration import get_client

    monkeypatch.setenv("PREFECT_API_URL", prefect_server["PREFECT_API_URL"])
    with get_client(sync_client=True) as client:
        for port in (1, 2):
            assert main(["--webhook", f"http://127.0.0.1:{port}/hook"]) == 0
            assert (
                "a message to 127.0.0.1\n" in capsys.readouterr().out
            )  # the path of such a URL is often a secret
            (made,) = client.read_automations_by_name(FAILURES)
            (action,) = made.actions
            block = client.read_block_document(action.block_document_id, include_secrets=True)
            assert block.data["url"] == f"http://127.0.0.1:{port}/hook"
        client.delete_automation(made.id)  # other tests' runs fail
        before = None
        for _ in range(2):
            assert main(["--lost-runs"]) == 0
            automations = [one.id for name in LOST for one in client.read_automations_by_name(name)]
            assert len(automations) == len(LOST) and before in (None, automations)
            before = automations
        (name, (events, seconds)), *_ = LOST.items()
        monkeypatch.setitem(LOST, name, (events, seconds + 30))
        assert main(["--lost-runs"]) == 0
        (newer,) = client.read_automations_by_name(name)
        assert newer.id not in before and newer.trigger.within.total_seconds() == seconds + 30
    assert main(["--pretrain-after-drift", "5"]) == 2
    assert "no deployment continued-pretraining/default" in capsys.readouterr().err
