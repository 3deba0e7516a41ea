"""What is asked of a server's automations; what becomes of them is in test_server.py."""

import pytest

from data.errors import InputError
from flows.orchestration.automations import FAILURES, make_automations


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
def test_what_cannot_work_is_refused(arguments, message, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "")  # as if there were none
    with pytest.raises(InputError, match=message):
        make_automations(arguments)


@pytest.mark.slow
def test_one_made_again_takes_the_place_of_the_first(prefect_server, monkeypatch):
    from prefect.client.orchestration import get_client

    monkeypatch.setenv("PREFECT_API_URL", prefect_server["PREFECT_API_URL"])
    with get_client(sync_client=True) as client:
        for port in (1, 2):
            assert make_automations(["--webhook", f"http://127.0.0.1:{port}/hook"]) == 0
            (made,) = client.read_automations_by_name(FAILURES)
            (action,) = made.actions
            block = client.read_block_document(action.block_document_id, include_secrets=True)
            assert block.data["url"] == f"http://127.0.0.1:{port}/hook"
        client.delete_automation(made.id)  # failures of other tests are nobody's concern
    with pytest.raises(InputError, match="no deployment continued-pretraining/default"):
        make_automations(["--pretrain-after-drift", "5"])
