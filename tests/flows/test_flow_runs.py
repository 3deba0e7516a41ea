"""What a server that is started again makes of the runs that it finds."""

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.states import Completed, Crashed, Running

from flows.flow_runs import mark_crashed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@flow
def whole():
    pass


@task
def call():
    pass


def test_flows_that_a_lost_run_called_are_marked_as_it_is_and_those_of_commands_are_left():
    with get_client(sync_client=True) as client:

        def begin(caller, state):
            called = caller and client.create_task_run(call, caller.id, "0", state=Running()).id
            return client.create_flow_run(whole, parent_task_run_id=called, state=state)

        lost = begin(None, Crashed(message="SIGKILL"))
        command = begin(None, Running())
        done, part = begin(lost, Completed()), begin(lost, Running())
        deeper, of_command = begin(part, Running()), begin(command, Running())
        assert mark_crashed() == []
        runs = (lost, done, part, deeper, command, of_command)
        names = [client.read_flow_run(run.id).state.name for run in runs]
        assert names == ["Crashed", "Completed", "Crashed", "Crashed", "Running", "Running"]
        for run in (command, of_command):
            client.delete_flow_run(run.id)
