"""serve: Prefect's server and the deployments of prefect.yaml on this machine, with one command.

A server or a runner that dies is started again. When asked to stop, it cancels the runs first, so that
trainings write checkpoints. Server and UI listen on 127.0.0.1 alone; PREFECT_API_AUTH_STRING=user:password
sets a password.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from data.errors import InputError
from data.locks import hold
from data.storage import is_remote
from data.terminal import make_app, run_app
from data.workspace import Workspace, default_place, local_folder, state_folder
from flows.orchestration.servers import address_file

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
FILE = ROOT / "prefect.yaml"

START_SECONDS, STOP_SECONDS = 300, 90
SETTLE_SECONDS = 30
MOST_RESTARTS, RESTART_SECONDS = 5, 600  # restarts within the time, before serve gives up

app = make_app("serve", "Run Prefect's server and the deployments of prefect.yaml; Ctrl-C stops both.")


@app.default
def serve(*, port: int = 4200, limit: int = 4, workspace: str | None = None) -> int:
    """Run Prefect's server and the deployments of prefect.yaml; Ctrl-C stops both.

    Args:
        port: Port on 127.0.0.1.
        limit: Largest number of runs at a time.
        workspace: Folder or URL for runs that name no workspace.
    """
    if limit < 1:
        raise InputError(f"limit={limit}: it must be 1 or more")
    place = workspace or default_place()
    folder = Workspace(local_folder(place))
    with listen(port) as listener, sole_server(folder):
        os.environ.update(environment(place, port))
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
        services = Services(folder, listener, limit, stop_on_signal())
        try:
            services.start()
            services.watch()
        finally:
            services.stop()
    return 0


@app.command(show=False)
def run_deployments(*, limit: int) -> None:
    """Run the deployments in this process, which `serve` starts.

    In a thread, so that SIGTERM ends this process at once: Prefect's own handler would kill the runs, and
    they get SIGTERM from the system when their parent dies.
    """
    from prefect import serve

    run = partial(
        serve, *load_deployments(), limit=limit, pause_on_shutdown=False, print_starting_message=False
    )
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@app.command(show=False)
def run_server(*, listener: int, reports: Path) -> None:
    """Run the server in this process, which `serve` starts, on its socket of that number."""
    from flows.orchestration import web

    web.run_server(socket.socket(fileno=listener), reports)


def environment(place: str, port: int) -> dict[str, str]:
    """Environment of the server, the runner and the runs. Most variables that are set already win."""
    defaults = {
        "PREFECT_HOME": str(state_folder(local_folder(place))),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_CLI_PROMPT": "false",
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
        # by default any web page open in a browser here may start runs
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    result = {**defaults, **os.environ}
    result["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    result["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    result["JIXU_WORKSPACE"] = place if is_remote(place) else str(Path(place).resolve())
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


@contextmanager
def sole_server(workspace: Workspace) -> Iterator[None]:
    """Raise InputError if the workspace is served already: two servers would share one database."""
    refusal = f"{workspace.root} is being served already: use that server, or another --workspace"
    with ExitStack() as held:
        try:
            held.enter_context(hold(workspace.lock("serve"), refusal))
        except OSError as error:
            raise InputError(
                f"{workspace.root} cannot be written to ({error.strerror}): choose another --workspace"
            ) from None
        yield


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
    """The server, and the runner that starts the runs of deployments."""

    def __init__(self, workspace: Workspace, listener: socket.socket, limit: int, stopping: threading.Event):
        self.listener, self.limit, self.stopping = listener, limit, stopping
        self.log, self.reports = Path(os.environ["PREFECT_HOME"]) / "server.log", workspace.report("")
        self.address = address_file(workspace.root)
        self.server: subprocess.Popen[bytes] | None = None
        self.runner: subprocess.Popen[bytes] | None = None
        self.restarts: dict[str, list[float]] = {"server": [], "runner": []}
        self.over = threading.Event()
        self.failure: InputError | None = None
        self.keeper = threading.Thread(target=self.keep_server, daemon=True)

    def start(self) -> None:
        """Start both and say where the server is. Raise InputError if it does not start."""
        say("starting Prefect's server")
        self.server = start_server(self.listener, self.reports, self.log, self.stopping)
        if self.stopping.is_set():
            return
        self.keeper.start()
        # commands find the server of their workspace by it
        self.address.parent.mkdir(parents=True, exist_ok=True)
        self.address.write_text(os.environ["PREFECT_API_URL"], encoding="utf-8")
        from flows.orchestration.automations import add_lost_runs
        from flows.orchestration.lifecycle import settle_runs_of_before

        self.ask(add_lost_runs)
        self.ask(partial(settle_runs_of_before, STOP_SECONDS))
        since = datetime.now(UTC)
        self.runner = start_runner(self.limit)
        while not self.stopping.wait(0.2) and not self.ask(partial(are_deployed, since)):
            self.keep_runner()
        self.ask(announce)

    def ask(self, work: Callable[[], T]) -> T | None:
        """Do what asks the server, from the beginning if that dies meanwhile; None if asked to stop."""
        import httpx

        while not self.stopping.is_set():
            with suppress(httpx.TransportError):
                return work()
        return None

    def watch(self) -> None:
        """Keep the runner and settle runs until asked to stop. Raise InputError if a part ends too often."""
        import httpx

        from flows.orchestration.lifecycle import cancel_running

        settle_at = time.monotonic()
        while not self.stopping.wait(0.5):
            self.keep_runner()
            if time.monotonic() >= settle_at:
                settle()
                settle_at = time.monotonic() + SETTLE_SECONDS
        if self.failure:
            raise self.failure
        say("stopping")
        if self.runner:
            with suppress(httpx.TransportError):  # the server is gone: the next start settles them
                cancel_running(STOP_SECONDS)

    def keep_server(self) -> None:
        """Start the server again when it ends, in a thread: what asks it meanwhile waits for an answer."""
        try:
            while not self.over.wait(0.2):
                if self.server and self.server.poll() is not None:
                    self.count_restart("server")
                    self.server = start_server(self.listener, self.reports, self.log, self.over)
        except InputError as error:
            self.failure = error
            self.stopping.set()
            self.listener.close()  # nothing waits for it any more

    def keep_runner(self) -> None:
        """Start the runner again if it has ended."""
        from flows.orchestration.lifecycle import end_run_processes

        if self.runner and self.runner.poll() is not None:
            self.count_restart("runner")
            end_run_processes(STOP_SECONDS)
            self.runner = start_runner(self.limit)

    def count_restart(self, name: str) -> None:
        now = time.monotonic()
        self.restarts[name] = [at for at in self.restarts[name] if now - at < RESTART_SECONDS] + [now]
        if len(self.restarts[name]) > MOST_RESTARTS:
            raise InputError(
                f"the {name} ended once more, after {MOST_RESTARTS} restarts in ten minutes: {self.log}"
            )
        say(f"the {name} ended by itself: starting it again")

    def stop(self) -> None:
        """Stop the runner and what is left of its runs, then the server."""
        if self.runner:
            from flows.orchestration.lifecycle import end_run_processes

            stop(self.runner)
            end_run_processes(STOP_SECONDS)
        self.address.unlink(missing_ok=True)
        self.over.set()
        if self.keeper.is_alive():
            self.keeper.join()
        if self.server:
            stop(self.server)


def _end_with(parent: int) -> None:
    # PR_SET_PDEATHSIG of prctl(2), of the thread that starts them: both live as long as this process
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), signal.SIGTERM)


def begin(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, in a session of its own: it does not get Ctrl-C."""
    ends = partial(_end_with, os.getpid()) if sys.platform == "linux" else None
    return subprocess.Popen(
        [sys.executable, "-m", *command], start_new_session=True, preexec_fn=ends, **options
    )


def start_server(
    listener: socket.socket, reports: Path, log: Path, stopping: threading.Event
) -> subprocess.Popen[bytes]:
    """Start the server and wait until it answers. Raise InputError with its last words if it does not."""
    with log.open("wb") as output:
        number = listener.fileno()
        command = ["flows.orchestration.serve", "run-server", "--listener", str(number)]
        command += ["--reports", str(reports.resolve())]
        server = begin(command, cwd=ROOT, stdout=output, stderr=output, pass_fds=[number])
    host, port = listener.getsockname()
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        if stopping.wait(0.2) or answers(f"http://{host}:{port}/api/health"):
            return server
    stop(server, signal.SIGKILL)
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise InputError(f"the server did not start: {words[-1] if words else 'it said nothing'} (see {log})")


def answers(url: str) -> bool:
    """Whether a server answers there, be it with a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def start_runner(limit: int) -> subprocess.Popen[bytes]:
    """Start the process that makes the deployments and starts their runs."""
    from flows.orchestration.lifecycle import SERVED_BY

    command = ["flows.orchestration.serve", "run-deployments", "--limit", str(limit)]
    return begin(command, cwd=ROOT, env={**os.environ, SERVED_BY: str(os.getpid())})


def load_deployments(path: Path = FILE) -> list[RunnerDeployment]:
    """Return the file's deployments for `prefect.serve`. Schedules that exist stay on or off as they are."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.schedules import Cron

    active = active_schedules()
    deployments = []
    for entry in read_entries(path):
        module, _, name = entry["entrypoint"].partition(":")
        flow = getattr(importlib.import_module(f"flows.{Path(module).stem}"), name)
        limit = entry.get("concurrency_limit")
        schedules = [
            Cron(
                schedule["cron"],
                timezone=schedule["timezone"],
                slug=schedule["slug"],
                active=active.get((flow.name, entry["name"], schedule["slug"]), schedule["active"]),
            )
            for schedule in entry.get("schedules", [])
        ]
        deployment = flow.to_deployment(
            entry["name"],
            description=entry["description"],
            tags=entry["tags"],
            parameters=entry.get("parameters"),
            schedules=schedules,
            concurrency_limit=ConcurrencyLimitConfig(**limit) if limit else None,
        )
        # set, so that a deployment that was in a work pool leaves it
        deployment.work_pool_name = deployment.work_queue_name = None
        deployments.append(deployment)
    return deployments


def read_entries(path: Path = FILE) -> list[dict[str, Any]]:
    """Return the deployments that the file describes."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]


def active_schedules() -> dict[tuple[str, str, str | None], bool]:
    """Return whether the server's schedules are active, by flow, deployment and slug."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return {
            (client.read_flow(deployment.flow_id).name, deployment.name, schedule.slug): schedule.active
            for deployment in client.read_deployments()
            for schedule in deployment.schedules
        }


def are_deployed(since: datetime) -> bool:
    """Whether the runner, which updates the deployments one by one, has updated all of them."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        updated = [one for one in client.read_deployments() if one.updated and one.updated >= since]
    return len(updated) >= len(read_entries())


def announce() -> None:
    """Print the schedules that are off, and where the server is."""
    for (flow, name, slug), active in active_schedules().items():
        if not active:
            say(f"schedule {slug} of {flow}/{name} is not active: activate it in the UI (Deployments)")
    api = os.environ["PREFECT_API_URL"]
    say(
        f"jixu is served at {api.removesuffix('/api')} (Ctrl-C stops it); in other shells:\n"
        f"  export PREFECT_API_URL={api}"
    )


def settle() -> None:
    """End what a cancel did not reach and mark the parts of lost runs as crashed, if the server answers."""
    import httpx

    from flows.orchestration.lifecycle import crash_parts_of_lost_runs, finish_overlooked_cancels

    with suppress(httpx.HTTPError):
        finish_overlooked_cancels()
        crash_parts_of_lost_runs()


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Send a signal to a process and wait for its end; kill it if that takes long, or on another signal."""
    if process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def say(text: str) -> None:
    """Print it, unless the terminal was closed, which is no reason to stop halfway."""
    with suppress(OSError):
        print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_app(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
