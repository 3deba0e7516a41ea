"""Running a flow as a command: Prefect's environment, and user errors as one line with exit code 2.

Imports nothing slow, so that `--help` answers at once and a mistake is told before any server starts.
"""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data.errors import InputError
from flows.orchestration.arguments import make_parser
from flows.orchestration.servers import server_version

LEAST_BYTES = 32 * 2**20  # free on the disk of a workspace: the files of a short-lived server take some
HUNG = "a task took longer than --task-hours and was taken for hung: is its source out of reach?"
EXIT_USER_ERROR, EXIT_INTERRUPTED = 2, 75  # 75: EX_TEMPFAIL of sysexits, "try again"


def set_up_prefect(workspace: Path) -> None:
    """Quiet and offline; without a server of the user's, Prefect's own short-lived one, its files in the
    workspace.
    """
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        # an error reaches the user from the command itself, once
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_CLI_PROMPT": "false",
    }
    if not os.environ.get("PREFECT_API_URL"):
        defaults |= {
            "PREFECT_HOME": str(workspace.resolve() / ".prefect"),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
            "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" in os.environ:
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)


def check_room(workspace: Path) -> None:
    """Raise InputError if hardly anything can be written to the workspace's disk; OSError if nothing can."""
    if workspace.is_file():
        raise InputError(f"workspace {workspace} is a file: choose another --workspace")
    workspace.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(workspace).free
    if free < LEAST_BYTES:
        raise InputError(
            f"{free / 2**20:.0f} MiB are free on the disk of {workspace}: make room (python -m data.catalog "
            "gc removes old versions), or choose another --workspace"
        )


def disk_trouble(error: Exception) -> str | None:
    """A line on an error that is the disk's, whichever library met it; None for any other."""
    number = getattr(error, "errno", None)
    # DuckDB and Arrow hand on the system's words, not its number
    if number in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error):
        return "the disk is full: what was committed before is whole; make room and run the same again"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{getattr(error, 'filename', None)} cannot be written to or read ({os.strerror(number)})"
    return None


def trouble(error: Exception) -> str | None:
    """A line on an error that is neither the input's nor the program's; None for any other."""
    if told := disk_trouble(error):
        return told
    # known by their names: what has them takes seconds to import
    if type(error).__name__ == "TaskRunTimeoutError":
        return HUNG
    if type(error).__name__ == "BrokenProcessPool":
        return "a worker process was killed, most often for want of memory: run it again with fewer --workers"
    if type(error).__name__ == "ParameterTypeError":  # a line of words, then one for each parameter
        return "; ".join(line.removeprefix(" - ") for line in str(error).splitlines()[1:])
    # Prefect has no class for it
    if isinstance(error, RuntimeError) and "ephemeral Prefect API server" in str(error):
        return "Prefect's short-lived server did not start in time: try again when the machine is less busy"
    return None


def run_if_main(module_name: str) -> None:
    """Run the flow of the file that calls this, and exit, if that file is run as a command."""
    if module_name != "__main__":
        return
    spec = sys.modules["__main__"].__spec__
    command = (spec.name if spec else Path(sys.argv[0]).stem).rpartition(".")[2]
    # worker processes would import the command's file again, and Prefect with it; they need neither
    sys.modules["__main__"].__spec__ = None
    sys.modules["__main__"].__dict__.pop("__file__", None)
    raise SystemExit(run(command, sys.argv[1:]))


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a flow from its command-line arguments; returns the exit code."""
    parameters = vars(make_parser(command).parse_args(arguments))
    os.environ["JIXU_COMMAND"] = shlex.join(["jixu", command.replace("_", "-"), *arguments])
    try:
        publication = importlib.import_module("data.publication")
        read_only = bool(parameters.get("dry_run"))
        with publication.working_copy(parameters["workspace"], read_only=read_only) as folder:
            status, told = _run_in(folder, command, parameters)
        print(told)
        return status
    except InputError as error:
        return _refuse(command, error)
    except Exception as error:
        # ConfigError is of albert, which takes seconds to import: known by its name, and of what is one
        if {kind.__name__ for kind in type(error).__mro__} & {"ConfigError", "KernelError"}:
            return _refuse(command, error)
        if told := trouble(error):
            return _refuse(command, InputError(told))
        if "Query interrupted" in str(error):  # Ctrl-C, as DuckDB tells of it
            return _stopped(command)
        raise
    except KeyboardInterrupt:
        return _stopped(command)


def _run_in(folder: str, command: str, parameters: dict[str, object]) -> tuple[int, str]:
    """Check the arguments and run the flow in a folder: the exit code, and what a person is told."""
    parameters = {**parameters, "workspace": folder}
    settings = importlib.import_module("flows.orchestration.settings")
    if parameters.get("dry_run"):
        return 0, settings.preview_refresh(**parameters)
    importlib.import_module("flows.orchestration.checks").CHECKS[command](**parameters)
    # a server takes seconds to start, and a refresh by cron mostly finds nothing new
    if command == "refresh_corpus" and (told := settings.standing_refresh(**parameters)):
        return 0, told
    check_room(Path(folder))
    if command == "refresh_corpus" and not os.environ.get("PREFECT_API_URL"):
        plainly = importlib.import_module("flows.orchestration.plain_refresh").refresh_plainly
        if told := plainly(**parameters):
            return 0, told
    set_up_prefect(Path(folder))
    server_version()  # refuses one that is of no use
    module = importlib.import_module(f"flows.{command}")
    flow = getattr(module, command)
    flow.validate_parameters(parameters)  # against the bounds of the form
    with without_heartbeats():
        outcome = flow(**parameters)
    status = EXIT_INTERRUPTED if getattr(outcome, "status", None) == "interrupted" else 0
    return status, module.describe(outcome)


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """No events that say a run is alive, unless the user asks for them: whoever began a command sees that,
    and to end them Prefect sleeps up to a second.
    """
    if "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in os.environ:
        yield
        return
    settings = importlib.import_module("prefect.settings")
    # None is no heartbeats, which a variable of the environment cannot say
    with settings.temporary_settings({settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _stopped(command: str) -> int:
    print(f"{command}: stopped", file=sys.stderr)
    return EXIT_INTERRUPTED


def _refuse(command: str, error: Exception) -> int:
    # Prefect keeps the error, and with it the frames it went through and what they hold open
    traceback.clear_frames(error.__traceback__)
    print(f"{command}: {error}", file=sys.stderr)
    return EXIT_USER_ERROR
