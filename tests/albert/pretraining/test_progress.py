import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest

from albert.pretraining import PretrainSettings, TrainerState
from albert.pretraining.progress import ProgressLog, StepRecord
from albert.pretraining.state import Figures
from tests.albert.pretraining.conftest import with_options
from tests.flows.serving import free_port, wait_until


@pytest.fixture
def settings(tmp_path):
    return PretrainSettings(run_folder=tmp_path / "run", shards=["a"], steps=40, running={"log_every": 2})


def steps(log, state, numbers):
    """Steps of two corpora, 100 tokens and half a second each."""
    for number in numbers:
        state.step, state.seconds = number, state.seconds + 0.5
        corpora = {0: Figures(2.0 * 30, 15, 30, boundary_loss=1.0 * 30), 1: Figures(4.0 * 10, 5, 10, 3, 4)}
        log.step(StepRecord(number, 100, corpora, 1.5, 1e-3), state)


def logged(settings, state, numbers=range(1, 5), speaks=True):
    """A log that has ended, of such steps."""
    log = ProgressLog(settings, state, speaks=speaks)
    steps(log, state, numbers)
    log.close()
    return log


def test_a_line_has_means_speed_and_time_left_and_no_figure_of_other_tokens_than_its_losses(settings, capsys):
    state = TrainerState(history=[{"step": 0, "held_out_mlm_loss": 3.0}])
    log = logged(settings, state)
    record = state.history[-1]
    assert record == {
        "step": 4, "mlm_loss": 2.5, "mlm_accuracy": 0.5, "gradient_norm": 1.5, "learning_rate": 1e-3,
        "tokens_per_second": 200.0, "sop_accuracy": 0.75, "boundary_loss": 0.75,
    }  # fmt: skip
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("step 4/40  mlm_loss 2.5") and "tokens_per_second 200" in line
    assert line.endswith("0:00:18 left")
    kept = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert kept == state.history and [r["step"] for r in kept] == [0, 2, 4]
    log = ProgressLog(settings, state := TrainerState(), speaks=True)
    baselines = {"held_out_bigram_loss@law": 5.0, "held_out_seen": 0.1}
    log.record({"step": 0, "held_out_mlm_loss": 3.0, "full_held_out_mlm_loss": 4.0, **baselines}, state)
    log.close()
    assert capsys.readouterr().err.splitlines() == ["step 0/40  held_out_mlm_loss 3"]


def test_a_rollback_removes_the_records_after_it(settings):
    state = TrainerState()
    log = ProgressLog(settings, state, speaks=True)
    steps(log, state, range(1, 8))
    earlier = TrainerState(step=2, seconds=1.0, history=state.history[:1])
    log.roll_back(earlier)
    steps(log, earlier, range(3, 5))
    log.close()
    kept = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(r["step"], r["tokens_per_second"]) for r in kept] == [(2, 200.0), (4, 200.0)]


def test_only_the_first_process_speaks_and_on_a_terminal_there_is_a_bar(settings, capsys, monkeypatch):
    log = logged(settings, state := TrainerState(), speaks=False)
    log.say("nothing")
    assert not capsys.readouterr().err and not settings.run_folder.exists()
    assert [record["step"] for record in state.history] == [2, 4]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    logged(settings, TrainerState())
    shown = capsys.readouterr().err
    assert "4/40" in shown and "tokens_per_second 200" in shown and "step 4/40" not in shown


def test_a_tracker_that_fails_is_reported_once_and_switched_off(settings, capsys, monkeypatch):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def add_scalar(self, name, value, step):
        if step > 2:
            raise OSError("no space left")

    monkeypatch.setattr(SummaryWriter, "add_scalar", add_scalar)
    tracked = with_options(settings, running={"tracker": "tensorboard"})
    log = logged(tracked, TrainerState(), range(1, 9))
    assert capsys.readouterr().err.count("tensorboard is left out from now on") == 1
    assert len(log.path.read_text().splitlines()) == 4


@pytest.fixture
def mlflow_server(tmp_path, monkeypatch):
    """Begins MLflow's own server, on the same store and port each time."""
    pytest.importorskip("mlflow.server")
    servers, port = [], free_port()

    def answers():
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/health").is_success

    def begin():
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        store = f"sqlite:///{tmp_path}/mlflow.db"
        servers.append(subprocess.Popen([*command, "--backend-store-uri", store], process_group=0))
        wait_until(answers)
        return servers[-1]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    yield begin
    for server in servers:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_a_server_of_mlflow_that_dies_and_comes_back_has_the_run(settings, capsys, mlflow_server):
    settings, state = with_options(settings, running={"tracker": "mlflow"}), TrainerState()
    server = mlflow_server()
    log = ProgressLog(settings, state, speaks=True)
    log.record({"step": 0, "held_out_mlm_loss@茶": 3.0}, state)
    steps(log, state, range(1, 5))
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    steps(log, state, range(5, 9))
    log.close()
    assert capsys.readouterr().err.count("mlflow is left out from now on") == 1
    mlflow_server()
    logged(settings, state, range(9, 11))

    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("jixu").experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "mlm_loss")] == [2, 4, 10]
    assert run.data.metrics["held_out_mlm_loss/茶"] == 3.0
