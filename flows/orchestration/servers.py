"""The server of PREFECT_API_URL and that of `jixu serve`: do they answer, and let us in?"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data.errors import InputError
from data.workspace import state_folder

# Prefect sends nothing anywhere and asks nothing
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_CLI_PROMPT": "false",
}
OWNER = "JIXU_COMMAND_PROCESS"  # a variable of a short-lived server: the process id of its command


def server_version() -> str | None:
    """Return its version of Prefect, or None without a URL. Raise InputError if it cannot be used."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return None
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


def address_file(workspace: Path) -> Path:
    """Return the file in which `jixu serve` keeps the URL of its API while it runs."""
    return state_folder(workspace) / "api-url"


def served_at(workspace: Path) -> str | None:
    """Return the API of the server that `jixu serve` runs for the workspace, if it answers."""
    try:
        url = address_file(workspace).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return url if answers(url, seconds=10) else None


def answers(url: str, seconds: float) -> bool:
    """Whether a server's API answers; its health can be asked for without a password."""
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/health", timeout=seconds):
            return True
    except (OSError, ValueError):  # ValueError: an empty address
        return False


def start_short_lived_server() -> None:
    """Start Prefect's server for this process, out of reach of Ctrl-C, which a terminal sends to it too.

    A training that is stopped still has to report how it ended.
    """
    from prefect.client.orchestration import get_client

    def start() -> None:
        # a process inherits the signals that the thread which starts it blocks
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with get_client(sync_client=True):
            pass

    with ThreadPoolExecutor(1) as executor:
        executor.submit(start).result()


def end_orphaned_servers() -> None:
    """End short-lived servers whose command was killed; make this process the owner of the next one."""
    import psutil

    for process in psutil.process_iter(["cmdline", "environ"]):
        owner = (process.info["environ"] or {}).get(OWNER)
        is_server = "prefect.server.api.server:create_app" in (process.info["cmdline"] or ())
        if owner and is_server and not psutil.pid_exists(int(owner)):
            process.terminate()
    os.environ[OWNER] = str(os.getpid())
