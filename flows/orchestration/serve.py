"""serve: Prefect's server, the deployments of prefect.yaml and a worker on this machine, with one command.

All of them stop with it: runs are cancelled first, so that a training writes a checkpoint. Server and UI
listen on 127.0.0.1 alone. PREFECT_API_AUTH_STRING=user:password asks for basic authentication.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import yaml
from filelock import FileLock, Timeout

from data.errors import InputError
from data.storage import is_remote
from data.workspace import Workspace, default_place, local_folder
from flows.orchestration.command import EXIT_USER_ERROR

ROOT = Path(__file__).parents[2]


POOL, PORT = "local", 4200
START_SECONDS, STOP_SECONDS = 300, 60
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jixu serve",
        description="Prefect's server, the deployments and a worker; Ctrl-C stops.",
    )
    parser.add_argument("--port", type=int, default=PORT, help="of 127.0.0.1 [%(default)s]")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="runs are begun by this process (flow.serve) in place of a work pool's worker",
    )
    parser.add_argument("--limit", type=int, default=4, help="runs at the same time at most [%(default)s]")
    parser.add_argument("--workspace", default=default_place(), help="of runs that name none [%(default)s]")
    return parser


def environment(place: str, port: int) -> dict[str, str]:
    """Variables of the server, the worker and the runs; what the user has set goes before the most of it."""
    chosen = {
        "PREFECT_HOME": str(local_folder(place).resolve() / ".prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        # by default the states of tasks are written one by one, each a transaction: half of a task's price
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        # by default each of these five looks for work every five seconds, where there mostly is none
        "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
        "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_LOOP_SECONDS": "60",
        "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "30",
        "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT30S",
        # by default they are lost with the server's process: runs that hold one are then ended
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # by default any page of the web that is open in a browser here may begin runs
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    result = {**chosen, **os.environ}
    result["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    result["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    result["JIXU_WORKSPACE"] = place if is_remote(place) else str(Path(place).resolve())
    if auth := os.environ.get("PREFECT_API_AUTH_STRING"):
        result["PREFECT_SERVER_API_AUTH_STRING"] = auth
    return result


def check_port(port: int) -> None:
    """Raise InputError if something listens there already."""
    if not 1 <= port <= 65535:
        raise InputError(f"port={port}: it must be from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): stop what listens there, "
                "or pass --port with another"
            ) from None


@contextmanager
def only_server(workspace: Workspace) -> Iterator[None]:
    """Raise InputError if the workspace is served already: two servers would share one database."""
    lock = workspace.lock("serve")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0):
            yield
    except Timeout:
        raise InputError(
            f"{workspace.root} is being served already: use that server, or another --workspace"
        ) from None
    except OSError as error:
        raise InputError(
            f"{workspace.root} cannot be written to ({error.strerror}): choose another --workspace"
        ) from None


def begin(command: Sequence[str], **given: object) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. A signal that comes meanwhile ends it too: it would raise
    KeyboardInterrupt where nobody knows of the process yet.
    """
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: came.append(number))
    try:
        process = subprocess.Popen(command, start_new_session=True, **given)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        stop(process)
        raise KeyboardInterrupt
    return process


def start_server(port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the server and wait until it answers. Raises InputError with its last words if it does not."""
    # `python -m prefect`, not the script: found wherever this Python is
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        server = begin(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + START_SECONDS
        while server.poll() is None and time.monotonic() < until:
            if answers(f"http://127.0.0.1:{port}/api/health"):
                return server
            time.sleep(0.2)
    except KeyboardInterrupt:
        stop(server)  # in a session of its own, it does not hear Ctrl-C
        raise
    stop(server, signal.SIGKILL)
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise InputError(f"the server did not start: {words[-1] if words else 'it said nothing'} (see {log})")


def answers(url: str) -> bool:
    """Whether a server answers there, be it with a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def start_worker(limit: int, log: Path) -> subprocess.Popen[bytes]:
    """Make the work pool and the deployments of prefect.yaml, and start a worker on them."""
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    with log.open("wb") as output:
        for command in (
            ["work-pool", "create", POOL, "--type", "process", "--overwrite"],
            ["deploy", "--all"],
        ):
            if subprocess.run([*prefect, *command], cwd=ROOT, stdout=output, stderr=output).returncode:
                output.flush()
                words = " ".join(log.read_text(encoding="utf-8", errors="replace").split())
                raise InputError(f"prefect {' '.join(command)} failed: {words[-300:]}")
    worker = ["worker", "start", "--pool", POOL, "--type", "process", "--limit", str(limit)]
    return begin([*prefect, *worker], cwd=ROOT)


def start_runner(limit: int) -> subprocess.Popen[bytes]:
    """Start the process that serves every deployment of prefect.yaml by itself."""
    command = [sys.executable, "-m", "flows.orchestration.deployments", "--limit", str(limit)]
    return begin(command, cwd=ROOT)


def wait_for_deployments(runner: subprocess.Popen[bytes]) -> None:
    """Until the server knows every deployment, which a runner makes one by one, or the runner has ended."""
    from flows.orchestration.flow_runs import count_deployments

    wanted = len(yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"])
    until = time.monotonic() + START_SECONDS
    while runner.poll() is None and time.monotonic() < until and count_deployments() < wanted:
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> None:
    """Send a signal to a process and wait for its end; it is killed when that takes too long, or when this
    one is asked to stop again.
    """
    if process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def serve(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C, SIGTERM, or the end of a part. Returns the exit code."""
    given = make_parser().parse_args(arguments)
    if given.limit < 1:
        raise InputError(f"limit={given.limit}: it must be 1 or more")
    check_port(given.port)
    workspace = Workspace(local_folder(given.workspace))
    with only_server(workspace):
        os.environ.update(environment(given.workspace, given.port))
        home = Path(os.environ["PREFECT_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        tell("starting Prefect's server")
        parts = {"server": start_server(given.port, home / "server.log")}
        try:
            from flows.orchestration.flow_runs import cancel_running, end_without_worker, mark_crashed

            tell_of_crashed(mark_crashed())
            log = home / "deploy.log"
            if given.one_process:
                parts["worker"] = start_runner(given.limit)
                wait_for_deployments(parts["worker"])
            else:
                parts["worker"] = start_worker(given.limit, log)
            tell(
                f"jixu is served at http://127.0.0.1:{given.port} (Ctrl-C stops it); in other shells:\n"
                f"  export PREFECT_API_URL={os.environ['PREFECT_API_URL']}",
            )
            ended = wait_for_any(parts)
            tell(f"the {ended} ended by itself: stopping" if ended else "stopping")
            if ended == "worker":
                tell_of_crashed(end_without_worker(STOP_SECONDS + 30))
            elif not ended:
                cancel_running(STOP_SECONDS)
        finally:
            for name, part in reversed(parts.items()):
                # to a worker SIGTERM is Ctrl-C once it runs; before, it ends without a traceback
                stop(part, signal.SIGTERM if name == "worker" else signal.SIGINT)
    return 1 if ended else 0


def tell_of_crashed(names: Sequence[str]) -> None:
    for name in names:
        tell(f"{name}: its process is gone, marked as crashed; run it again to go on")


def wait_for_any(parts: dict[str, subprocess.Popen[bytes]]) -> str | None:
    """The name of the first part that ends; None when this process is asked to stop before."""
    try:
        while True:
            for name, part in parts.items():
                if part.poll() is not None:
                    return name
            time.sleep(0.5)
    except KeyboardInterrupt:
        return None


def tell(text: str) -> None:
    """Print it, if somebody can still read it: a terminal that was closed is no reason to stop halfway."""
    with suppress(OSError):
        print(text, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    # Ctrl-C too: a shell's background job is started with it ignored
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    # the terminal is closed; under nohup that is to be ignored
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        return serve(sys.argv[1:])
    except InputError as error:
        print(f"serve: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
