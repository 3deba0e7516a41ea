"""A deployment's run whose worker is killed: a real server and Prefect's process worker."""

import os
import subprocess
import sys

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate

from albert.trainer_state import list_checkpoints, step_of
from data.catalog import read_catalog
from data.workspace import Workspace
from flows.flow_runs import _at_work
from tests.conftest import make_corpus, save_small_model
from tests.flows.serving import ROOT, wait_until

STEPS = 200


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
            path=str(ROOT),
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
