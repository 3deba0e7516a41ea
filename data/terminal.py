"""Shared by all commands: exit codes, and one line on standard error for a user's mistake."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError
from pydantic.fields import FieldInfo

from data.errors import UserError, disk_trouble

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

# 75: EX_TEMPFAIL of sysexits.h, "try again"
EXIT_DIFFERENT, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 75
EXIT_PIPE_CLOSED = 141  # as shells report SIGPIPE, 128 + 13


def make_app(name: str, help: str) -> App:
    """Make a command, or a tree of commands."""
    shown = Parameter(negative_iterable=(), show_default=_shown)
    app = App(
        name=name,
        help=help,
        help_format="plaintext",  # rich takes a while to import its Markdown
        version_flags=(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run_app` says what it ended
        default_parameter=shown,
        group_parameters=Group("Parameters", help_formatter=_print_required_first),
    )
    app["--help"].show = False
    return app


def _print_required_first(console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    from cyclopts.help import DefaultFormatter  # imports rich

    panel.entries.sort(key=lambda entry: not entry.required)
    DefaultFormatter()(console, options, panel)


def _shown(default: object) -> object:
    """Return a default as `--help` shows it; a list with commas, as it may be typed."""
    if isinstance(default, FieldInfo):
        default = default.get_default(call_default_factory=True)
    return ",".join(map(str, default)) or "none" if isinstance(default, tuple) else default


def run_app(app: App, arguments: Sequence[str] | None = None, name: str | None = None) -> int:
    """Run a command; returns its exit code. A user's mistake is one line on standard error."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    return run_piped(lambda: _run(app, tokens, name or app.name[0]))


def _run(app: App, tokens: Sequence[str], name: str) -> int:
    try:
        status = app(tokens, exit_on_error=False, print_error=False)
        return status if isinstance(status, int) else 0
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        line = usage_fault(error) if isinstance(error, CycloptsError | UserError) else disk_trouble(error)
        if line is None:
            raise
        print(f"{name}: {' '.join(line.split())}", file=sys.stderr)
        return EXIT_USER_ERROR


def usage_fault(error: CycloptsError | UserError) -> str:
    """Say what is wrong with what was typed, such as a glob without quotes, of which a shell makes words."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} belongs to no option: write the option before each of its values"
    return str(error)


def run_piped(command: Callable[[], int]) -> int:
    """Return a command's exit code, or that of SIGPIPE if a reader such as head has closed its output."""
    try:
        status = command()
        print(end="", flush=True)  # nothing where there is no output
        return status
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)  # errors alone
        if not output.poll(0):
            raise  # another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return EXIT_PIPE_CLOSED
