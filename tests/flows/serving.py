"""A server as `make serve` starts it, and what a user does with it."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests import ROOT

DEADLINE = 900  # seconds for anything that is waited for: the machine may be busy


class Server:
    """A server with its worker in a workspace, and what a user does with it."""

    def __init__(self, workspace, port, *arguments, **environment):
        self.workspace, self.api = workspace, f"http://127.0.0.1:{port}/api"
        self.environment = {
            k: v for k, v in os.environ.items() if k not in ("PREFECT_HOME", "PREFECT_API_URL")
        }
        self.environment |= {"OMP_NUM_THREADS": "1", **environment}
        command = [
            sys.executable,
            "-m",
            "flows.orchestration.serve",
            "--port",
            str(port),
            "--workspace",
            str(workspace),
        ]
        command += arguments
        self.output = (workspace.parent / f"serve-{port}.log").open("w+b")
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=self.output, stderr=self.output
        )

    def said(self):
        return Path(self.output.name).read_text(encoding="utf-8")

    def prefect(self, *arguments):
        home = {"PREFECT_API_URL": self.api, "PREFECT_HOME": str(self.workspace / "client")}
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            capture_output=True,
            text=True,
            env=self.environment | home,
            timeout=DEADLINE,
        )

    def run(self, deployment, *options, **parameters):
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}={json.dumps(value)}")]
        return self.prefect("deployment", "run", deployment, *given, *options)

    def begin(self, deployment, **parameters):
        """As the UI does, which takes less time than the command of `run`."""
        made = self.ask(f"/deployments/name/{deployment}")["id"]
        return self.ask(f"/deployments/{made}/create_flow_run", {"parameters": parameters})["id"]

    def complete(self, deployment, **parameters):
        run = self.begin(deployment, **parameters)
        state = self.wait_for_state(run, "Completed", "Failed", "Crashed", "Cancelled")
        assert state[0] == "Completed", (deployment, state)
        return run

    def ask(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        password = self.environment.get("PREFECT_API_AUTH_STRING", "")
        headers = {"content-type": "application/json"}
        headers["authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
        request = urllib.request.Request(self.api + path, data, headers, method=method)
        until = time.monotonic() + DEADLINE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                # its database is busy, and Prefect's own clients ask again too
                if error.code != 503 or time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def cancel(self, run):
        """As the UI does."""
        self.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})

    def state(self, run):
        state = self.ask(f"/flow_runs/{run}")["state"]
        return state["name"], state["message"] or ""

    def artifacts(self, run):
        query = {"artifacts": {"flow_run_id": {"any_": [run]}}}
        return {artifact["key"] for artifact in self.ask("/artifacts/filter", query)}

    def wait_for_state(self, run, *names):
        wait_until(lambda: self.state(run)[0] in names, lambda: (self.state(run), self.said()[-3000:]))
        return self.state(run)

    def wait_until_it_serves(self):
        wait_until(lambda: "jixu is served at" in self.said() or self.process.poll() is not None, self.said)
        assert self.process.poll() is None, self.said()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(DEADLINE)


def wait_until(is_so, told=lambda: ""):
    until = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < until, told()
        time.sleep(0.2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
