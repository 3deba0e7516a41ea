"""Crashed runs run again, and not for ever; test_server.py has a training that is killed."""

from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.states import Crashed, Failed

from flows.rerun_crashed import MOST_RERUNS, rerun_crashed


@pytest.mark.slow
def test_a_run_is_run_again_with_its_parameters_until_it_has_crashed_too_often(prefect_server, monkeypatch):
    given = {"corpus": "茶", "steps": 4, "resume": "never"}
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name("continued-pretraining")
        deployment = client.create_deployment(flow, f"crashing-{uuid4()}")

        def begin(parameters):
            return client.create_flow_run_from_deployment(deployment, parameters=parameters)

        def end(run, state):
            client.set_flow_run_state(run.id, state, force=True)

        def others():
            runs = client.read_flow_runs()
            return [one for one in runs if one.deployment_id == deployment and one.state.is_scheduled()]

        end(begin(given | {"steps": 5}), Crashed())
        end(begin(given), Failed())
        run = begin(given)
        for _ in range(MOST_RERUNS):
            end(run, Crashed())
            for _ in range(2):  # the server may act twice on one event
                assert rerun_crashed(run.id, return_state=True).is_completed()
            (run,) = others()
            assert run.parameters == given | {"resume": "auto"}
        end(run, Crashed())
        state = rerun_crashed(run.id, return_state=True)
        assert state.is_failed() and state.message.endswith("4 runs like it in 6 hours: it is not run again")
        assert not others()
        monkeypatch.setattr("flows.rerun_crashed.HOURS", 0)
        assert rerun_crashed(run.id, return_state=True).is_completed()
        client.delete_deployment(deployment)
        commands = client.create_flow_run(rerun_crashed)
        gone = [(one, f"no run {one}, or its deployment was deleted") for one in (run.id, uuid4())]
        for one, why in ((commands.id, f"{commands.name} is no deployment's run"), *gone):
            assert why in rerun_crashed(one, return_state=True).message
