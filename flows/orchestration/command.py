"""A job as a command: its options from the command line, its plan, and then its flow.

Whatever can be refused or answered without Prefect is: importing it and starting its server take seconds.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from data.errors import ConfigError, masked
from data.options import faults, options_of
from data.publication import working_copy
from data.refresh import load_recipe
from data.terminal import EXIT_INTERRUPTED, make_app, run_named
from data.workspace import check_room, state_folder
from flows.orchestration.mistakes import explain
from flows.orchestration.servers import begin_own_server, make_prefect_home, served_at, server_version
from flows.orchestration.settings import JOBS, Job

HEARTBEAT_SECONDS = 30  # the automation for lost runs expects one at least every 90


def make_command(name: str) -> App:
    """The command line of a job; calling it returns the job's options."""
    options = JOBS[name]

    def parse(chosen=None):
        return options() if chosen is None else chosen

    if any(field.is_required() for field in options_of(options).values()):
        parse.__defaults__ = None
    parse.__annotations__ = {"chosen": Annotated[options, Parameter(name="*")], "return": options}
    app = make_app(f"jixu {name}", (options.__doc__ or "").partition("\n\nArgs:")[0])
    app.default(parse)
    return app


def read_options(name: str, arguments: Sequence[str]) -> Job | None:
    """The options that the arguments give; None after `--help`. Raises CycloptsError or UserError."""
    app, tokens = make_command(name), list(arguments)
    place = _value_of("--recipe", tokens) if name == "refresh-corpus" else None
    if place:
        # what is typed takes precedence, be it equal to its default
        recipe: Any = to_jsonable_python(load_recipe(Path(place)))
        app.config = Dict(recipe, source=place)
    try:
        chosen = app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        if isinstance(error.__cause__, ValidationError):
            raise ConfigError(faults(error.__cause__, JOBS[name])) from None
        raise
    return replace(chosen, recipe=None) if place and chosen else chosen


def _value_of(option: str, tokens: Sequence[str]) -> str | None:
    for place, token in enumerate(tokens):
        if token == option:
            return next(iter(tokens[place + 1 :]), None)
        if token.startswith(f"{option}="):
            return token.partition("=")[2]
    return None


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a job from its command-line arguments; returns the exit code. SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typed = ["jixu", name, *arguments]
    if (place := os.environ.get("JIXU_WORKSPACE")) and _value_of("--workspace", arguments) is None:
        typed += ["--workspace", place]  # a report tells how to repeat it
    os.environ["JIXU_COMMAND"] = masked(shlex.join(typed))
    return run_named(name, partial(_run, name, arguments), explain)


def _run(name: str, arguments: Sequence[str]) -> int:
    chosen = read_options(name, arguments)
    if chosen is None:
        return 0
    with working_copy(chosen.workspace, read_only=chosen.dry_run) as copy:
        status, text = _run_in(name, replace(chosen, workspace=str(copy.root)))
    print(text)
    return status


def _run_in(name: str, chosen: Job) -> tuple[int, str]:
    """Plan and run a job in a folder: the exit code, and what a person reads."""
    from flows.orchestration.plans import PREPARE, Answer

    plan = PREPARE[name](chosen)
    if isinstance(plan, Answer):
        return 0, plan.text
    check_room(chosen.place.root)
    set_up_prefect(chosen.place.root)
    has_own = server_version() is None  # refuses a server that cannot be used
    ready = begin_own_server() if has_own else lambda: None
    if has_own and sys.stderr.isatty():
        print(f"{name}: starting Prefect's server, which ends with this command", file=sys.stderr)
    module = importlib.import_module(f"flows.{name.replace('-', '_')}")  # takes as long as the server's start
    from flows.orchestration.jobs import call

    ready()
    with heartbeats(None if has_own else HEARTBEAT_SECONDS):
        outcome = call(getattr(module, name.replace("-", "_")), chosen, plan)
    status = EXIT_INTERRUPTED if getattr(outcome, "status", None) == "interrupted" else 0
    return status, module.describe(outcome)


def set_up_prefect(workspace: Path) -> None:
    """Make Prefect quiet. Without a server of the user's, take the one that `jixu serve` runs for
    the workspace; the history of a command's own stays on this machine.
    """
    # an error reaches the user from the command itself, once
    defaults = dict.fromkeys(("PREFECT_LOGGING_LEVEL", "PREFECT_INTERNAL_LOGGING_LEVEL"), "CRITICAL")
    if not os.environ.get("PREFECT_API_URL"):
        os.environ.pop("PREFECT_API_URL", None)  # an empty one is none
        defaults |= {
            "PREFECT_HOME": str(state_folder(workspace)),
            "PREFECT_API_REQUEST_TIMEOUT": "300",  # its server shares a busy machine with the job
            "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
            "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # for automations: `jixu serve` does
        }
        if url := served_at(workspace):
            defaults["PREFECT_API_URL"] = url
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" in os.environ:
        make_prefect_home()


def heartbeats(seconds: int | None) -> AbstractContextManager[object]:
    """Send heartbeats to a server that stays, which so notices a killed command; none to a command's own
    server, because to end them Prefect sleeps up to a second. The user's setting wins.
    """
    if "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in os.environ:
        return nullcontext()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    # None is no heartbeats, which a variable of the environment cannot say
    return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: seconds})


def run_as_command(file: str) -> NoReturn:
    """Become `jixu` with the job of a flow's file, so that settings are made before Prefect is imported."""
    job = Path(file).stem.replace("_", "-")
    os.execv(sys.executable, [sys.executable, "-m", "flows", job, *sys.argv[1:]])
