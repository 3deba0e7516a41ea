"""A server as `make serve` starts it, and what a user does with it."""

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

import prefect
import psutil
from filelock import FileLock

from albert.pretraining import list_checkpoints, step_of
from data.workspace import Workspace, state_folder
from tests import ROOT
from tests.commands import run_python
from tests.corpora import ask

DEADLINE = 400  # seconds to wait for anything: the machine may be busy
PREPARE = """
import asyncio
from prefect.server.database import provide_database_interface
from prefect.server.models.block_registration import run_block_auto_registration

async def prepare():
    database = provide_database_interface()
    await database.create_db()
    async with await database.session() as session:
        await run_block_auto_registration(session=session)

asyncio.run(prepare())
"""
FINAL = ("Completed", "Failed", "Crashed", "Cancelled")


def add_database(home: Path, name: str = "prefect.db") -> None:
    """Begin a folder of Prefect's with tables and types of blocks: a new server makes them in ten seconds."""
    kept = ROOT / ".pytest_cache" / f"prefect-{prefect.__version__}-blocks.db"
    if (home / name).exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    kept.parent.mkdir(exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            begun = kept.with_suffix(".begun")
            begun.unlink(missing_ok=True)
            url = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{begun}"}
            subprocess.run([sys.executable, "-c", PREPARE], env=os.environ | url, check=True)
            begun.rename(kept)
    shutil.copy(kept, home / name)


@contextmanager
def answering(status):
    """A web server on this machine that gives every request the same status: its URL, and what was posted."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(self.rfile.read(int(self.headers.get("content-length", 0))))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/api", posted
        http.shutdown()


def answer(port, path, method="GET", password=None, body=None, **headers):
    """Status, headers and text of a server's answer; the path goes out as it is."""
    if password:
        headers["authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
    with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


class Server:
    """`jixu serve` in a workspace, and what a user does with it."""

    def __init__(self, workspace, port, command=("-m", "flows"), **environment):
        self.workspace, self.port, self.api = workspace, port, f"http://127.0.0.1:{port}/api"
        kept = {k: v for k, v in os.environ.items() if k not in ("PREFECT_HOME", "PREFECT_API_URL")}
        quick = {"OMP_NUM_THREADS": "1", "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
        self.environment = kept | quick | environment
        command = [*command, "serve", "--port", str(port), "--workspace", str(workspace)]
        add_database(state_folder(workspace))
        self.output = (workspace.parent / f"serve-{port}.log").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT, env=self.environment, stdout=self.output, stderr=self.output,
        )  # fmt: skip

    def __enter__(self):
        # the address is printed once the deployments are there
        wait_until(lambda: "jixu is served at" in self.log() or self.process.poll() is not None, self.log)
        assert self.process.poll() is None, self.log()
        return self

    def __exit__(self, *_):
        self.stop()

    def log(self):
        return Path(self.output.name).read_text(encoding="utf-8")

    def part(self, name):
        """The process of the server or of the runner."""
        module = {"server": "flows.orchestration.web", "runner": "flows.orchestration.runner"}[name]
        return next(p for p in psutil.Process(self.process.pid).children() if module in p.cmdline())

    def command(self, *arguments):
        """Run a module's command as a client of this server."""
        home = {"PREFECT_API_URL": self.api, "PREFECT_HOME": str(self.workspace / "client")}
        return run_python("-m", *arguments, **self.environment | home)

    def begin(self, deployment, *, after=timedelta(), **parameters):
        """Start a run as the UI does, at once or later, in less time than a command takes."""
        made = self.ask(f"/deployments/name/{deployment}")["id"]
        due = {"scheduled_time": (datetime.now(UTC) + after).isoformat()}
        body = {"parameters": parameters, "state": {"type": "SCHEDULED", "state_details": due}}
        return self.ask(f"/deployments/{made}/create_flow_run", body)["id"]

    def ask(self, path, body=None, method=None):
        method = method or ("GET" if body is None else "POST")
        sent = None if body is None else json.dumps(body)
        given = (method, self.environment.get("PREFECT_API_AUTH_STRING"), sent)
        until, status = time.monotonic() + DEADLINE, 503
        # while its database is busy Prefect's own clients ask again too
        while status == 503 and time.monotonic() < until:
            status, _, text = answer(self.port, f"/api{path}", *given, **{"content-type": "application/json"})
            time.sleep(0.5 if status == 503 else 0)
        assert status < 300, f"{status}: {text}"
        return json.loads(text or "null")

    def cancel(self, run):
        """Cancel a run as the UI does."""
        self.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def state(self, run):
        state = self.ask(f"/flow_runs/{run}")["state"]
        return state["name"], state["message"] or ""

    def artifacts(self, run):
        query = {"artifacts": {"flow_run_id": {"any_": [run]}}}
        return {artifact["key"] for artifact in self.ask("/artifacts/filter", query)}

    def messages(self, run):
        query = {"logs": {"flow_run_id": {"any_": [run]}}}
        return [log["message"] for log in self.ask("/logs/filter", query)]

    def wait_for_state(self, run, *names):
        wait_until(lambda: self.state(run)[0] in names, lambda: (self.state(run), self.log()[-3000:]))
        return self.state(run)

    def wait_for_end(self, run):
        return self.wait_for_state(run, *FINAL)

    def recorded_states(self):
        """The names of the states of its runs, by id, from its database: also without it."""
        with closing(sqlite3.connect(state_folder(self.workspace) / "prefect.db")) as db:
            rows = db.execute("select id, state_name from flow_run").fetchall()
        return {str(UUID(run)): name for run, name in rows}

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self.output.close()
        return code


def processes_of(run):
    """The processes of a run and their children: they share its environment."""
    everyone = psutil.process_iter(["environ"])
    return [p for p in everyone if (p.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID") == str(run)]


def steps_of(folder):
    """The steps in a run's metrics."""
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.is_file() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def stopped_at(workspace, run):
    """The step of the checkpoint that a stopped training left, which the catalog knows as interrupted."""
    folder = Workspace(workspace).model(run)
    query = "select status, steps from pretraining_runs where run = ?"
    ((status, step),) = ask(workspace, query, run)
    steps = steps_of(folder)
    assert status == "interrupted" and step == step_of(list_checkpoints(folder)[0])
    assert steps == sorted(steps) and max(steps) <= step
    return step


def wait_until(is_so, details=lambda: ""):
    until = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < until, details()
        time.sleep(0.5)  # for an answer the server works up to 0.04 s


def free_port():
    """One that the system gives to nobody who asks it for any, in the seconds until a server binds it."""
    port = 10_000 + secrets.randbelow(22_000)
    with socket.socket() as probe:
        return free_port() if probe.connect_ex(("127.0.0.1", port)) == 0 else port
