"""serve: Prefect's server and the deployments of prefect.yaml on this machine, with one command.

A server or a runner that dies is started again. Server and UI listen on 127.0.0.1 alone;
PREFECT_API_AUTH_STRING=user:password sets a password.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from data.errors import InputError
from data.files import write_text
from data.locks import hold
from data.storage import is_remote
from data.workers import end
from data.workspace import Workspace, check_room, default_place, local_folder, state_folder
from flows.orchestration.servers import (
    STOP_SECONDS,
    address_file,
    begin,
    begin_server,
    make_prefect_home,
    wait_for_server,
)

MOST_RESTARTS, RESTART_SECONDS = 5, 600  # restarts within the time, before serve gives up


def serve(*, port: int = 4200, limit: int = 4, workspace: str | None = None) -> int:
    """Run Prefect's server and the deployments of prefect.yaml; Ctrl-C stops both.

    Args:
        port: Port on 127.0.0.1.
        limit: Largest number of runs at a time.
        workspace: Folder or URL for runs that name no workspace.
    """
    if limit < 1:
        raise InputError(f"limit={limit}: it must be 1 or more")
    read_declared()
    place = workspace or default_place()
    folder = Workspace(local_folder(place))
    # two servers would share one database
    served = f"{folder.root} is being served already: use that server, or another --workspace"
    with listen(port) as listener:
        check_room(folder.root)
        with hold(folder.lock("serve"), served):
            os.environ.update(environment(place, port))
            make_prefect_home()
            Services(folder, listener, limit, stop_on_signal()).run()
    return 0


def read_declared() -> list[dict[str, Any]]:
    """Return the deployments that prefect.yaml declares. Raise InputError if it is no YAML, or has none."""
    import yaml

    path = Path(__file__).with_name("prefect.yaml").resolve()
    try:
        return list(yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"])
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise InputError(f"{path}: {type(error).__name__}: {error}") from None


def environment(place: str, port: int) -> dict[str, str]:
    """Environment of the server, the runner and the runs. Most variables that are set already win."""
    defaults = {
        "PREFECT_HOME": str(state_folder(local_folder(place))),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        # the automation for lost runs expects one at least every 90 seconds
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        # by default each task state is a transaction, half of a task's cost
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        # by default each of these five polls every five seconds, mostly for nothing
        "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
        "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "30",
        "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT30S",
        # by default leases are lost with the server's process, and the runs that hold one are ended
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # by default any web page open in a browser here may use the API; `web.OwnPages` refuses others
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    result = {**defaults, **os.environ}
    result["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    result["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    result["JIXU_WORKSPACE"] = place if is_remote(place) else str(local_folder(place).resolve())
    if password := os.environ.get("PREFECT_API_AUTH_STRING"):
        result["PREFECT_SERVER_API_AUTH_STRING"] = password
    return result


def listen(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1. Raise InputError if something listens there already.

    It outlives the server: what begins while that is away waits for the next one, in place of crashing.
    """
    if not 1 <= port <= 65535:
        raise InputError(f"port={port}: it must be from 1 to 65535")
    try:
        return socket.create_server(("127.0.0.1", port), backlog=2048)
    except OSError as error:
        raise InputError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): stop what listens there, "
            "or pass --port with another"
        ) from None


def stop_on_signal() -> threading.Event:
    """Return an event that Ctrl-C, SIGTERM and a closed terminal set; a second signal raises."""
    stopping = threading.Event()

    def request(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # SIGINT too where it is ignored: a shell starts background jobs like that; nohup ignores SIGHUP
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, request)
    return stopping


class Services:
    """The server, and the runner that starts the runs of deployments; one that ends is started again."""

    def __init__(self, workspace: Workspace, listener: socket.socket, limit: int, stopping: threading.Event):
        self.workspace, self.listener, self.stopping = workspace, listener, stopping
        self.log = Path(os.environ["PREFECT_HOME"]) / "server.log"
        self.log.unlink(missing_ok=True)
        self.runner = ["flows.orchestration.runner", str(os.getpid()), str(limit)]
        self.parts: dict[str, psutil.Popen] = {}
        self.restarts: dict[str, list[float]] = {"server": [], "runner": []}

    def run(self) -> None:
        """Run both until asked to stop. Raise InputError if one does not start, or ends too often."""
        show("starting Prefect's server")
        address = address_file(self.workspace.root)
        try:
            self.keep("server")
            # commands find the server of their workspace by it
            write_text(address, f"{os.environ['PREFECT_API_URL']} {os.getpid()}")
            while not self.stopping.wait(0.2):
                self.keep("server")
                self.keep("runner")
            show("stopping")
            if runner := self.parts.get("runner"):
                # it cancels its runs, for which it needs the server, and waits for them twice so long at most
                with suppress(psutil.Error):
                    runner.terminate()
                    runner.wait(2 * STOP_SECONDS + 10)
        except InputError:
            self.listener.close()  # no server will answer what waits there
            raise
        finally:
            address.unlink(missing_ok=True)
            # runs notice that their runner is gone, which could not cancel them without a server
            for name, number in (("runner", signal.SIGKILL), ("server", signal.SIGINT)):
                if part := self.parts.get(name):
                    end([part], STOP_SECONDS, number)

    def keep(self, name: str) -> None:
        """Start a part, for the first time or after it has ended."""
        part = self.parts.get(name)
        if part is None or part.poll() is not None:
            if part:
                self.count_restart(name)
            self.parts[name] = self.start_server() if name == "server" else begin(self.runner)

    def start_server(self) -> psutil.Popen:
        """Start the server and wait until it answers."""
        server = begin_server(self.listener, self.log, self.workspace.report(""))
        wait_for_server(server, self.listener, self.log, self.stopping)
        return server

    def count_restart(self, name: str) -> None:
        now = time.monotonic()
        self.restarts[name] = [at for at in self.restarts[name] if now - at < RESTART_SECONDS] + [now]
        if len(self.restarts[name]) > MOST_RESTARTS:
            raise InputError(
                f"the {name} ended once more, after {MOST_RESTARTS} restarts in ten minutes: {self.log}"
            )
        show(f"the {name} ended by itself: starting it again")


def show(text: str) -> None:
    """Print it, unless the terminal was closed, which is no reason to stop halfway."""
    with suppress(OSError):
        print(text, flush=True)
