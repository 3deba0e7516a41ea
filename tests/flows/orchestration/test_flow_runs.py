"""What is made of runs whose process, or whose worker, is gone."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.states import Cancelled, Completed, Crashed, Pending, Running, Scheduled

from flows.orchestration.flow_runs import cancel_running, crash, end_without_worker, mark_crashed

SLEEP = "import time; time.sleep(600)"
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


@contextmanager
def runs_of_a_deployment(count):
    """Runs that have begun, by what the server knows."""
    with get_client(sync_client=True) as client:
        made = client.create_deployment(client.create_flow_from_name("whole"), f"left-{uuid4()}")
        runs = [client.create_flow_run_from_deployment(made) for _ in range(count)]
        for run in runs:
            client.set_flow_run_state(run.id, Running(), force=True)
        yield client, runs
        client.delete_deployment(made)


def process_of(run, code):
    """A process as Prefect begins one for a run."""
    command = [sys.executable, "-c", f"print('here', flush=True); {code}"]
    environment = os.environ | {"PREFECT__FLOW_RUN_ID": str(run.id)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    return process


def test_tasks_of_a_lost_run_are_marked_with_it_but_for_those_that_ended():
    with runs_of_a_deployment(1) as (client, [lost]):
        states = [Completed(), Running(), Pending(), Scheduled(), Cancelled()]
        tasks = [client.create_task_run(call, lost.id, str(i), state=s) for i, s in enumerate(states)]
        # killed, and marked by its worker
        known = client.create_flow_run(whole, state=Crashed(message="SIGKILL"))
        tasks.append(client.create_task_run(call, known.id, "0", state=Running()))
        assert mark_crashed() == [lost.name]
        state = client.read_flow_run(lost.id).state
        assert state.name == "Crashed" and "Run it again to go on" in state.message
        names = [client.read_task_run(run.id).state.name for run in tasks]
        assert names == ["Completed", "Crashed", "Crashed", "Crashed", "Cancelled", "Crashed"]


def test_all_pages_of_an_answer_are_read(monkeypatch):
    with get_client(sync_client=True) as client:
        caller = client.create_flow_run(whole, state=Crashed(message="SIGKILL"))
        tasks = [client.create_task_run(call, caller.id, str(i), state=Running()) for i in range(5)]
        monkeypatch.setattr(client, "read_task_runs", partial(client.read_task_runs, limit=2))
        crash(client, [caller], "gone")
        assert {client.read_task_run(run.id).state.name for run in tasks} == {"Crashed"}


def test_a_run_at_work_is_not_lost():
    with runs_of_a_deployment(1) as (client, [run]), process_of(run, SLEEP) as process:
        assert mark_crashed() == []
        assert client.read_flow_run(run.id).state.name == "Running"
        process.kill()
        process.wait()
        assert mark_crashed() == [run.name]


def test_without_a_worker_runs_have_time_to_end_and_are_killed_when_it_is_over():
    with runs_of_a_deployment(3) as (client, [ends, hangs, gone]):
        begun = time.monotonic()
        with process_of(ends, "import time; time.sleep(1)") as one, process_of(hangs, SLEEP) as other:
            assert set(end_without_worker(2)) == {ends.name, hangs.name, gone.name}
            assert 2 <= time.monotonic() - begun < 60
            assert one.wait() == 0
            other.wait()  # for ten minutes, were it not killed
        assert {client.read_flow_run(run.id).state.name for run in (ends, hangs, gone)} == {"Crashed"}


def test_without_a_worker_nobody_waits_longer_than_the_runs_take():
    with runs_of_a_deployment(1) as (_, [run]), process_of(run, "import time; time.sleep(1)"):
        begun = time.monotonic()
        assert end_without_worker(600) == [run.name]
        assert time.monotonic() - begun < 300


def test_a_worker_that_does_not_cancel_is_not_waited_for_any_longer():
    with runs_of_a_deployment(1) as (client, [run]):
        begun = time.monotonic()
        cancel_running(1)
        assert 1 <= time.monotonic() - begun < 60
        assert client.read_flow_run(run.id).state.name == "Cancelling"
