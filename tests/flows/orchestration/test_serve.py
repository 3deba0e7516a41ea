"""`make serve` from its start to its end, however that comes; and without a worker."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest
import yaml
from filelock import FileLock

from data.errors import InputError
from flows.orchestration.serve import (
    ROOT,
    answers,
    begin,
    check_port,
    environment,
    serve,
    start_server,
    stop,
    tell,
)
from tests.flows.serving import DEADLINE, Server, free_port, wait_until

RUNS, SERVE = "flows.orchestration.flow_runs", "flows.orchestration.serve"
IGNORES = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('here', flush=True); "
    "time.sleep(600)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "parts", "given"),
    [
        (signal.SIGINT, 1, ()),
        (signal.SIGHUP, 1, ()),
        (signal.SIGINT, 2, ()),
        (signal.SIGINT, 2, ("--one-process",)),
    ],
    ids=["Ctrl-C", "closed terminal", "Ctrl-C while the worker starts", "Ctrl-C while one process starts"],
)
def test_asked_to_stop_while_it_starts_it_leaves_no_process(tmp_path, number, parts, given):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("a shell had the signal ignored")
    server = Server(tmp_path / "w", free_port(), *given)
    served = psutil.Process(server.process.pid)
    wait_until(lambda: served.children(), server.said)
    if given:
        wait_until(lambda: len(served.children()) == parts, server.said)
    elif parts == 2:
        server.wait_until_it_serves()
    begun = served.children()
    assert len(begun) == parts
    server.process.send_signal(number)
    assert server.process.wait(DEADLINE) == 0, server.said()
    assert not any(part.is_running() for part in begun)
    assert "Traceback" not in server.said()
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
    monkeypatch.setattr(f"{SERVE}.STOP_SECONDS", 0.2)
    part = subprocess.Popen([sys.executable, "-c", IGNORES], stdout=subprocess.PIPE, text=True)
    assert part.stdout.readline() == "here\n"
    stop(part)
    assert part.returncode == -signal.SIGKILL


def sleeping(seconds):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """What `serve` does about the runs, with processes in the place of its parts."""
    for name in ("PREFECT_HOME", "PREFECT_API_URL"):
        monkeypatch.setenv(name, str(tmp_path))
    kept = {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    monkeypatch.setattr(f"{SERVE}.environment", lambda *_: kept)
    done = []
    monkeypatch.setattr(f"{RUNS}.mark_crashed", lambda: [])
    monkeypatch.setattr(f"{RUNS}.cancel_running", lambda _: done.append("cancelled"))
    monkeypatch.setattr(f"{RUNS}.end_without_worker", lambda _: done.append("ended") or ["lost"])
    return done


@pytest.mark.parametrize(("part", "what"), [("worker", ["ended"]), ("server", [])])
def test_when_a_part_ends_the_rest_is_stopped_and_the_runs_of_a_worker_are_seen_to_their_end(
    tmp_path, monkeypatch, tried, capsys, part, what
):
    parts = [sleeping(0.5 if part == name else 600) for name in ("server", "worker")]
    monkeypatch.setattr(f"{SERVE}.start_server", lambda *_: parts[0])
    monkeypatch.setattr(f"{SERVE}.start_worker", lambda *_: parts[1])
    assert serve(["--workspace", str(tmp_path / "w"), "--port", str(free_port())]) == 1
    assert tried == what and all(one.returncode is not None for one in parts)
    said = capsys.readouterr().out
    assert f"the {part} ended by itself" in said and ("lost: its process is gone" in said) == bool(what)


def test_no_runs_at_a_time_are_refused(tmp_path):
    with pytest.raises(InputError, match="limit=0: it must be 1 or more"):
        serve(["--limit", "0", "--workspace", str(tmp_path)])


def test_a_signal_while_a_part_is_begun_ends_it(monkeypatch):
    begun, start = [], subprocess.Popen

    def popen(command, **given):
        begun.append(start(command, **given))
        os.kill(os.getpid(), signal.SIGTERM)
        return begun[0]

    monkeypatch.setattr(f"{SERVE}.subprocess.Popen", popen)
    monkeypatch.setattr(f"{SERVE}.STOP_SECONDS", 5)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        begin([sys.executable, "-c", "import time; time.sleep(600)"])
    assert begun[0].returncode is not None and signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_never_answers_is_ended_and_told_of(tmp_path, monkeypatch):
    silent = sleeping(600)
    monkeypatch.setattr(f"{SERVE}.START_SECONDS", 0.1)
    monkeypatch.setattr(f"{SERVE}.begin", lambda *_, **__: silent)
    with pytest.raises(InputError, match="the server did not start: it said nothing"):
        start_server(free_port(), tmp_path / "server.log")
    assert silent.returncode == -signal.SIGKILL


def test_a_server_that_refuses_is_one_that_answers():
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as http:
        threading.Thread(target=http.handle_request, daemon=True).start()
        assert answers(f"http://127.0.0.1:{http.server_port}/api/health")
    assert not answers(f"http://127.0.0.1:{free_port()}/api/health")


def test_a_terminal_that_was_closed_is_no_reason_to_stop(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        tell("stopping")
        monkeypatch.undo()
        with open(os.devnull, "w") as nowhere:  # for what is left in its buffer
            os.dup2(nowhere.fileno(), writer)


@pytest.mark.slow
def test_one_process_serves_the_deployments_and_tells_of_a_run_that_power_was_lost_for(tmp_path, samples):
    """`--one-process`: Prefect's `serve`, in place of a work pool and its worker."""
    given = {"corpus": "tea", "source": [str(samples / "tea.jsonl")], "tokenizer": "tea", "workers": 1}
    server = Server(tmp_path / "w", free_port(), "--one-process", PREFECT_RUNNER_POLL_FREQUENCY="1")
    try:
        server.wait_until_it_serves()
        wanted = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
        found = server.ask("/deployments/filter", {})
        assert len(found) == len(wanted)
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
