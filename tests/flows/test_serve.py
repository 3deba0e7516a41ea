"""`make serve` from its start to its end, however that comes; and without a worker."""

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest
import yaml
from filelock import FileLock

from data.records import InputError
from flows.serve import ROOT, check_port, environment, stop
from tests.flows.serving import DEADLINE, Server, free_port, wait_until

IGNORES = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('here', flush=True); "
    "time.sleep(600)"
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "closed terminal"])
def test_asked_to_stop_while_it_starts_it_leaves_no_process(tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("a shell had the signal ignored")
    server = Server(tmp_path / "w", free_port())
    served = psutil.Process(server.process.pid)
    wait_until(lambda: served.children(), server.said)
    (part,) = served.children()
    server.process.send_signal(number)
    assert server.process.wait(DEADLINE) == 0, server.said()
    assert not part.is_running()
    server.output.close()


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(InputError, match=f"port={port}: it must be from 1 to 65535"):
        check_port(port)


def test_what_the_user_has_set_goes_before_and_the_rest_is_closed_and_silent(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    monkeypatch.setenv("PREFECT_WORKER_QUERY_SECONDS", "7")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "tea:pot")
    monkeypatch.chdir(tmp_path)
    made = environment("w", 4201)
    assert made["PREFECT_API_URL"] == "http://127.0.0.1:4201/api"
    assert made["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4201,http://localhost:4201"
    assert made["PREFECT_SERVER_API_AUTH_STRING"] == "tea:pot" and made["PREFECT_WORKER_QUERY_SECONDS"] == "7"
    assert (made["PREFECT_SERVER_ANALYTICS_ENABLED"], made["DO_NOT_TRACK"]) == ("false", "1")
    # runs are begun in other folders
    assert made["JIXU_WORKSPACE"] == str(tmp_path / "w")
    assert environment("s3://tea/w", 4201)["JIXU_WORKSPACE"] == "s3://tea/w"


def test_a_part_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr("flows.serve.STOP_SECONDS", 0.2)
    part = subprocess.Popen([sys.executable, "-c", IGNORES], stdout=subprocess.PIPE, text=True)
    assert part.stdout.readline() == "here\n"
    stop(part)
    assert part.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_one_process_serves_the_deployments_and_tells_of_a_run_that_power_was_lost_for(tmp_path, samples):
    """`--one-process`: Prefect's `serve`, in place of a work pool and its worker."""
    given = {"corpus": "tea", "source": [str(samples / "tea.jsonl")], "tokenizer": "tea", "workers": 1}
    server = Server(tmp_path / "w", free_port(), "--one-process", PREFECT_RUNNER_POLL_FREQUENCY="1")
    try:
        server.wait_until_it_serves()
        wanted = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
        found = server.ask("/deployments/filter", {})
        while len(found) < len(wanted):  # it makes them one by one after it has begun
            time.sleep(0.5)
            found = server.ask("/deployments/filter", {})
        known = {one["name"]: one for one in found}
        assert not known["law-weekly"]["work_pool_name"]
        (schedule,) = known["law-weekly"]["schedules"]
        assert schedule["schedule"]["timezone"] == "Asia/Shanghai" and not schedule["active"]
        assert known["law-weekly"]["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        run = server.complete("train-tokenizer/default", source=given["source"], vocab_size=2000, name="tea")
        assert (server.workspace / "tokenizers" / "tea" / "vocab.txt").is_file()
        assert {"vocabulary-tea", "progress-tea"} <= server.artifacts(run)
        with FileLock(server.workspace / "locks" / "catalog.lock"):  # it cannot commit and end
            lost = server.begin("refresh-corpus/default", **given)
            server.wait_for_state(lost, "Running")
            kill_all_of(server)
        server = Server(tmp_path / "w", free_port(), "--one-process", PREFECT_RUNNER_POLL_FREQUENCY="1")
        server.wait_until_it_serves()
        assert "refresh tea: its process is gone, marked as crashed" in server.said()
        assert server.state(lost)[0] == "Crashed"
        with FileLock(server.workspace / "locks" / "catalog.lock"):
            # the slot of the deployment that the lost run had is free
            stopped = server.begin("refresh-corpus/default", **given)
            server.wait_for_state(stopped, "Running")
            assert server.stop() == 0, server.said()
        with closing(sqlite3.connect(server.workspace / ".prefect" / "prefect.db")) as db:
            states = dict(db.execute("select replace(id, '-', ''), state_name from flow_run"))
        assert states[stopped.replace("-", "")] == "Cancelled"
    finally:
        server.stop()
        server.output.close()


def kill_all_of(server):
    """End every process of a server at once, as a loss of power does."""
    processes = [psutil.Process(server.process.pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        process.kill()
    server.process.wait()
    psutil.wait_procs(processes, DEADLINE)
