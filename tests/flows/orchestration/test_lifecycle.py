"""How runs end: with a real server, and Prefect's process worker as in production."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import psutil
import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Pending, Running, Scheduled

from data.workers import end
from flows.orchestration.lifecycle import (
    WORKER_GONE,
    crash_parts_of_lost_runs,
    end_runs,
    ends_with_its_worker,
    is_overlooked,
    read_all,
)
from tests import ROOT
from tests.commands import output_of
from tests.conftest import save_small_model
from tests.corpora import make_corpus
from tests.flows.serving import DEADLINE, processes_of, stopped_at, wait_until


@flow
def whole():
    pass


@task
def call():
    pass


class Production:
    """A pool with jixu's worker, and a training of its deployment that goes on from run to run."""

    def __init__(self, server, folder, client, deployment, parameters):
        self.environment = os.environ | server | {"PREFECT_WORKER_QUERY_SECONDS": "0.5"}
        self.client, self.deployment, self.parameters = client, deployment, parameters
        self.workspace, self.log = Path(parameters["workspace"]), folder / "worker.log"
        self.metrics = self.workspace / "models" / "long" / "metrics.jsonl"

    @contextmanager
    def worker(self):
        command = [sys.executable, "-m", "flows", "worker", "--pool", "production", "--limit", "1"]
        with self.log.open("w+b") as output:
            worker = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=output, stderr=output)
            yield worker
            worker.kill()
            worker.wait()

    def train(self):
        """Begin a run, and wait until it has trained for some steps."""
        before = self.trained()
        run = self.client.create_flow_run_from_deployment(self.deployment, parameters=self.parameters)
        wait_until(lambda: self.trained() > before, self.log.read_text)
        return run.id

    def trained(self):
        return self.metrics.stat().st_size if self.metrics.is_file() else 0

    def state(self, run):
        wait_until(lambda: self.client.read_flow_run(run).state.is_final(), self.log.read_text)
        state = self.client.read_flow_run(run).state
        return state.name, state.message

    def stopped_at(self):
        return stopped_at(self.workspace, "long") if self.trained() else 0


@pytest.fixture(scope="module")
def production(prefect_server, tmp_path_factory, samples, vocabulary_file, tokenizer):
    folder = tmp_path_factory.mktemp("production")
    make_corpus(folder / "w", "tea", samples / "tea.jsonl", vocabulary_file, max_seq_length=64)
    init = save_small_model(folder / "small", tokenizer, max_position_embeddings=64)
    given = {"corpus": "tea", "init": str(init), "steps": 100_000, "batch_tokens": 512, "run": "long"}
    given["workspace"] = str(folder / "w")
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="production", type="process"))
        deployment = client.create_deployment(
            client.create_flow_from_name("continued-pretraining"),
            "default",
            work_pool_name="production",
            entrypoint="flows/continued_pretraining.py:continued_pretraining",
            # as `prefect deploy` has it; without it the project is copied for each run, its .venv too
            pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
        )
        yield Production(prefect_server, folder, client, deployment, given)
        client.delete_deployment(deployment)
        client.delete_work_pool("production")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked to", "killed"])
def test_a_training_whose_worker_stops_crashes_and_the_next_one_resumes_it(production, number):
    before = production.stopped_at()
    with production.worker() as worker:
        run = production.train()
        worker.send_signal(number)
        assert worker.wait(DEADLINE) == (-number if number == signal.SIGKILL else 0)
        # what a machine or a container that is shut down would have killed
        assert number == signal.SIGKILL or not processes_of(run), production.log.read_text()
        assert production.state(run) == ("Crashed", WORKER_GONE)
        wait_until(lambda: not processes_of(run))
    assert production.stopped_at() > before
    assert "Traceback" not in production.log.read_text()


@pytest.mark.slow
def test_a_training_of_a_worker_can_be_cancelled(production):
    """By the command line, and by SIGTERM to its process."""
    with production.worker() as worker:
        for by_command in (True, False):
            before, run = production.stopped_at(), production.train()
            if by_command:
                output_of("-m", "prefect", "flow-run", "cancel", run, **production.environment)
            else:
                for process in processes_of(run):
                    process.terminate()
            assert production.state(run)[0] == "Cancelled"
            assert production.stopped_at() > before and worker.poll() is None


@pytest.mark.slow
def test_parts_of_a_lost_run_are_marked_with_it_and_those_of_other_runs_are_left(prefect_server):
    with get_client(sync_client=True) as client:

        def begin(caller, state):
            part = caller and client.create_task_run(call, caller.id, "0", state=Running()).id
            return client.create_flow_run(whole, parent_task_run_id=part, state=state)

        lost = begin(None, Crashed(message="SIGKILL"))
        command = begin(None, Running())
        done, part = begin(lost, Completed()), begin(lost, Running())
        deeper, other = begin(part, Running()), begin(command, Running())
        states = [Completed(), Running(), Pending(), Scheduled(), Cancelled()]
        tasks = [client.create_task_run(call, lost.id, f"task-{i}", state=s) for i, s in enumerate(states)]
        end_runs(lambda run: run.id == command.id)  # not the runner's
        crash_parts_of_lost_runs()
        runs = (lost, done, part, deeper, command, other)
        names = [client.read_flow_run(run.id).state.name for run in runs]
        assert names == ["Crashed", "Completed", "Crashed", "Crashed", "Running", "Running"]
        names = [client.read_task_run(run.id).state.name for run in tasks]
        assert names == ["Completed", "Crashed", "Crashed", "Crashed", "Cancelled"]
        for run in (command, other):
            client.delete_flow_run(run.id)


@pytest.mark.slow
def test_a_cancel_that_the_runner_has_missed_ends_the_run_all_the_same(prefect_server, monkeypatch, tmp_path):
    works = "trap 'touch told; kill $!; exit' TERM; touch begun; sleep 600 & wait"
    folders, processes = [tmp_path / name for name in ("cancelled", "other", "of a worker")], []
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name("whole")
        client.create_work_pool(WorkPoolCreate(name="elsewhere", type="process"))
        pools = ({}, {}, {"work_pool_name": "elsewhere"})
        deployments = [client.create_deployment(flow, f"runs-{uuid4()}", **pool) for pool in pools]
        runs = [client.create_flow_run_from_deployment(deployment).id for deployment in deployments]
        for run, folder in zip(runs, folders, strict=True):
            client.set_flow_run_state(run, Running(), force=True)
            folder.mkdir()
            environment = os.environ | {"PREFECT__FLOW_RUN_ID": str(run)}
            processes.append(subprocess.Popen(["sh", "-c", works], cwd=folder, env=environment))
        for run in (runs[0], runs[2]):
            client.set_flow_run_state(run, Cancelling())
        wait_until(lambda: all((folder / "begun").exists() for folder in folders))
        end_runs(is_overlooked)  # its runner may be at it
        assert processes[0].poll() is None
        monkeypatch.setattr("flows.orchestration.lifecycle.OVERLOOKED", timedelta(0))
        end_runs(is_overlooked)
        assert [(folder / "told").exists() for folder in folders] == [True, False, False]
        names = [client.read_flow_run(run).state.name for run in runs]
        assert names == ["Cancelled", "Running", "Cancelling"]
        for process in processes[1:]:
            assert process.poll() is None
            process.terminate()
            process.wait()
        for deployment in deployments:
            client.delete_deployment(deployment)
        client.delete_work_pool("elsewhere")


def test_every_page_of_an_answer_is_read():
    assert read_all(lambda offset: [1, 2, 3][offset : offset + 2]) == [1, 2, 3]


def leave_a_mode():
    try:
        raise TerminationSignal(signal.SIGTERM)
    finally:
        raise RuntimeError("trying to pop from empty mode stack")  # as torch's modes do


ask_duckdb = Mock(side_effect=RuntimeError("Query interrupted"))


@pytest.mark.parametrize("work", [leave_a_mode, ask_duckdb], ids=["torch", "duckdb"])
def test_a_cancel_is_one_where_torch_or_duckdb_makes_another_error_of_it(work, monkeypatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
    for name in ("crash_parts_of_lost_runs", "end_with_parent"):
        monkeypatch.setattr(f"flows.orchestration.lifecycle.{name}", lambda *_: None)
    with pytest.raises(TerminationSignal):
        ends_with_its_worker(work)()


def test_processes_have_time_to_end_and_are_killed_when_it_is_over():
    ignores = ["sh", "-c", "trap '' INT TERM; echo begun; exec sleep 600"]
    with psutil.Popen(ignores, stdout=subprocess.PIPE, text=True) as hangs:
        assert hangs.stdout.readline() == "begun\n"
        begun = time.monotonic()
        end([hangs], 1)
        assert time.monotonic() - begun >= 1 and hangs.returncode == -signal.SIGKILL
