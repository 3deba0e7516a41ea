"""Prefect's servers: that of PREFECT_API_URL, that of `jixu serve`, and a command's own."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from data.errors import InputError
from data.workers import end
from data.workspace import state_folder

ROOT = Path(__file__).parents[2]
START_SECONDS, STOP_SECONDS = 300, 90


def ask_no_proxy() -> None:
    """Have this process and those it starts ask no proxy, as of http_proxy, for addresses of this machine."""
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if hosts != "*":  # no host is asked through one
        own = (host for host in ("127.0.0.1", "localhost") if host not in hosts.split(","))
        hosts = ",".join(filter(None, [hosts, *own]))
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = hosts


def server_version() -> str | None:
    """Return the version of the server at PREFECT_API_URL, or None. Raise InputError if it cannot be used."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return None
    ask_no_proxy()
    # takes seconds to import
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.read_flow_runs(limit=1)
            return client.api_version()
    except Exception as error:  # refused, not found, not a server of Prefect, or it wants a password
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = (
            "it wants a password: set PREFECT_API_AUTH_STRING=user:password"
            if status == 401
            else f"{' '.join(str(error).split())[:200]}; start it with make serve, or unset PREFECT_API_URL"
        )
        raise InputError(f"server {url}: {why}") from None


def make_prefect_home() -> None:
    """Make the folder of PREFECT_HOME. Raise InputError if nothing can be written there."""
    home = Path(os.environ["PREFECT_HOME"])
    with suppress(OSError):
        home.mkdir(0o700, parents=True, exist_ok=True)  # parameters may hold passwords
    if not os.access(home, os.W_OK):
        raise InputError(f"{home} cannot be written to: set HOME or XDG_STATE_HOME to a folder that can")


def address_file(workspace: Path) -> Path:
    """Return the file in which `jixu serve` keeps the URL of its API and its process id while it runs."""
    return state_folder(workspace) / "api-url"


def served_at(workspace: Path) -> str | None:
    """Return the API of the server that `jixu serve` runs for the workspace, if it answers."""
    ask_no_proxy()
    file = address_file(workspace)
    try:
        url, process = file.read_text(encoding="utf-8").split()
        # where one that was killed left its address, another server may listen there by now
        is_there = psutil.Process(int(process)).create_time() <= file.stat().st_mtime
    except (OSError, ValueError, psutil.NoSuchProcess):  # none is served, or the folder is another user's
        return None
    return url if is_there and answers(url, seconds=10) else None


def answers(url: str, seconds: float) -> bool:
    """Whether the API of a server on this machine answers; its health can be asked for without a password."""
    import urllib.request

    # not urlopen, whose first call would keep http_proxy for all later ones of the process
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/health", timeout=seconds):
            return True
    except OSError:
        return False


def begin(command: Sequence[str], **options: Any) -> psutil.Popen:
    """Start a module in a session of its own: it does not get Ctrl-C."""
    ask_no_proxy()
    return psutil.Popen([sys.executable, "-m", *command], cwd=ROOT, start_new_session=True, **options)


def begin_server(listener: socket.socket, log: Path, reports: Path | None = None) -> psutil.Popen:
    """Start a server that ends with this process, or by SIGINT."""
    number = listener.fileno()
    command = ["flows.orchestration.web", str(os.getpid()), str(number)]
    command += [str(reports.resolve())] if reports else []
    with log.open("ab") as output:  # one that is started again must not take what the last one said
        return begin(command, stdout=output, stderr=output, pass_fds=[number])


def wait_for_server(
    server: psutil.Popen, listener: socket.socket, log: Path, stopping: threading.Event | None = None
) -> None:
    """Wait until a server answers. Raise InputError with its last words if it does not."""
    stopping = stopping or threading.Event()
    host, port = listener.getsockname()
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        if stopping.wait(0.1) or answers(f"http://{host}:{port}/api", seconds=2):
            return
    end([server], STOP_SECONDS, signal.SIGKILL)
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise InputError(f"the server did not start: {words[-1] if words else 'it said nothing'} (see {log})")


def begin_own_server() -> Callable[[], None]:
    """Start a server for this process and point Prefect to it; returns what waits until it answers.

    It ends with this process, after Prefect has sent it what is left, and only its history stays.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    log = Path(os.environ["PREFECT_HOME"]) / "command.log"
    log.unlink(missing_ok=True)
    server = begin_server(listener, log)
    atexit.register(end, [server], STOP_SECONDS, signal.SIGINT)

    def wait() -> None:
        with listener:
            wait_for_server(server, listener, log)

    return wait
