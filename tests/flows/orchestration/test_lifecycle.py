"""A deployment's run whose worker is killed: a real server and Prefect's process worker."""

import os
import subprocess
import sys

import psutil
import pytest
from prefect import task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.states import Running

from albert.pretraining import list_checkpoints, step_of
from data.catalog import read_catalog
from data.workspace import Workspace
from flows.orchestration.flow_runs import _at_work
from flows.orchestration.lifecycle import LOOK_SECONDS
from tests.conftest import make_corpus, save_small_model
from tests.flows.serving import DEADLINE, ROOT, wait_until

STEPS = 200


@task
def whole():
    pass


@pytest.fixture(scope="module")
def deployment(prefect_server):
    """continued-pretraining on a work pool that no other worker looks at."""
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="killed", type="process"))
        made = client.create_deployment(
            client.create_flow_from_name("continued-pretraining"),
            "default",
            work_pool_name="killed",
            entrypoint="flows/continued_pretraining.py:continued_pretraining",
            # as `prefect deploy` has it; without it the project is copied for each run, its .venv too
            pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
        )
        yield made
        client.delete_deployment(made)
        client.delete_work_pool("killed")


class Worker:
    """Prefect's process worker on that pool."""

    def __init__(self, server, log):
        command = [
            sys.executable,
            "-m",
            "prefect",
            "worker",
            "start",
            "--pool",
            "killed",
            "--type",
            "process",
        ]
        quick = {"PREFECT_WORKER_QUERY_SECONDS": "0.5", "OMP_NUM_THREADS": "1"}
        self.output = log.open("w+b")
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | server | quick, stdout=self.output, stderr=self.output
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_crashes_with_a_checkpoint_and_the_same_goes_on_to_its_end(
    deployment, prefect_server, tmp_path, samples, vocabulary_file, tokenizer
):
    make_corpus(tmp_path / "w", "tea", samples / "tea.jsonl", vocabulary_file, max_seq_length=64)
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64)
    given = {"corpus": "tea", "init": str(init), "steps": STEPS, "batch_tokens": 512, "run": "long"}
    given["workspace"] = str(tmp_path / "w")
    folder = tmp_path / "w" / "models" / "long"

    def state(run):
        return client.read_flow_run(run).state

    def begin():
        return client.create_flow_run_from_deployment(deployment, parameters=given).id

    first, second = tmp_path / "first.log", tmp_path / "second.log"
    metrics = folder / "metrics.jsonl"
    with get_client(sync_client=True) as client, Worker(prefect_server, first) as worker:
        killed = begin()
        wait_until(lambda: state(killed).is_running(), first.read_text)
        with Worker(prefect_server, second):  # beside the first: its run is not another's
            wait_until(lambda: metrics.is_file() and metrics.stat().st_size, first.read_text)
            worker.process.kill()
            wait_until(lambda: state(killed).is_final(), first.read_text)
            assert state(killed).name == "Crashed" and "worker of this run is gone" in state(killed).message
            wait_until(lambda: str(killed) not in _at_work())
            at = step_of(list_checkpoints(folder)[0])
            with read_catalog(Workspace(tmp_path / "w")) as db:
                told = db.execute("select status, steps from pretraining_runs").fetchall()
            assert told == [("interrupted", at)] and 0 < at < STEPS
            again = begin()
            wait_until(lambda: state(again).is_final(), second.read_text)
            assert state(again).name == "Completed", second.read_text()
            assert f"resumed at {at:,}" in second.read_text()
            wait_until(lambda: str(again) not in _at_work())


# a process in the place of a worker, which begins one in the place of a run
RUN = """
import os, signal, subprocess, sys, time
if sys.argv[1:]:
    from flows import workers
    workers.GRACE_SECONDS = 0.5
    child = subprocess.Popen(["sleep", "600"])
    if sys.argv[1] == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @workers.ends_with_its_worker
    def run(until):
        print(os.getpid(), child.pid, flush=True)
        time.sleep(until)

    run(0 if sys.argv[1] == "has ended" else 600)
    time.sleep(600)
subprocess.run([sys.executable, "-c", os.environ["RUN"], os.environ["WHAT"]])
"""


def kill_worker_of(what, **environment):
    """Kill what began a process, and give it some looks' time to see it; the process and its child."""
    environment = os.environ | {"RUN": RUN, "WHAT": what} | environment
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        processes = [psutil.Process(int(number)) for number in worker.stdout.readline().split()]
        worker.kill()
    return processes


@pytest.mark.slow
def test_a_run_that_hangs_is_killed_with_all_it_began_and_has_told_the_server(deployment, prefect_server):
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, Running(), force=True)
        called = client.create_task_run(whole, run.id, "0", state=Running())
        processes = kill_worker_of("hangs", PREFECT__FLOW_RUN_ID=str(run.id), **prefect_server)
        gone, left = psutil.wait_procs(processes, DEADLINE)
        assert not left and client.read_task_run(called.id).state.name == "Crashed"
        state = client.read_flow_run(run.id).state
        assert state.name == "Crashed" and "worker of this run is gone" in state.message


@pytest.mark.parametrize(
    ("what", "environment"),
    [("has ended", {"PREFECT__FLOW_RUN_ID": "0"}), ("a command's", {})],
    ids=["ended", "command"],
)
def test_what_is_no_run_of_a_deployment_or_has_ended_does_not_mind(what, environment):
    processes = kill_worker_of(what, **environment)
    _, left = psutil.wait_procs(processes, 4 * LOOK_SECONDS)
    for process in processes:
        process.kill()
    assert set(left) == set(processes)
