"""Shared by all commands: exit codes, and one line on standard error for a user's mistake."""

from __future__ import annotations

import io
import os
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError
from pydantic.fields import FieldInfo

from data.errors import UserError, disk_trouble, masked

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

# 75: EX_TEMPFAIL of sysexits.h, "try again"
EXIT_DIFFERENT, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 75
EXIT_PIPE_CLOSED = 141  # as shells report SIGPIPE, 128 + 13


def make_app(name: str, help: str) -> App:
    """Make a command, or a tree of commands."""
    app = App(
        name=name,
        help=help,
        help_format="plaintext",  # rich takes a while to import its Markdown
        version_flags=(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run_app` says what it ended
        default_parameter=Parameter(negative_iterable=(), show_default=_shown),
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


def explain(error: BaseException) -> str | None:
    """A line on an error that is not the program's; None for any other."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:  # as of a glob without quotes
        return f"{error.unused_tokens[0]!r} belongs to no option: write the option before each of its values"
    if isinstance(error, UserError | CycloptsError):
        return masked(" ".join(str(error).split()))
    if type(error).__name__ == "KernelError":  # JIXU_KERNELS may keep its module from loading
        return str(error)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "kernels":
        return "another package is named kernels, such as Hugging Face's: use an environment without it"
    return disk_trouble(error)


def run_app(
    app: App,
    arguments: Sequence[str] | None = None,
    name: str | None = None,
    explain: Callable[[BaseException], str | None] = explain,
) -> int:
    """Run a command; returns its exit code. A user's mistake is one line on standard error."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    work = partial(app, tokens, exit_on_error=False, print_error=False)
    return run_piped(lambda: run_named(name or app.name[0], work, explain))


def run_named(
    name: str, work: Callable[[], object], explain: Callable[[BaseException], str | None] = explain
) -> int:
    """Do a command's work; returns its exit code: what the work returns if that is a number, else 0."""
    try:
        status = work()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, Exception) as error:
        # Ctrl-C, as DuckDB reports it too
        is_stopped = isinstance(error, KeyboardInterrupt) or "Query interrupted" in str(error)
        line = "stopped" if is_stopped else explain(error)
        if line is None:
            raise
        let_go(error)
        print(f"{name}: {line}", file=sys.stderr)
        return EXIT_INTERRUPTED if is_stopped else EXIT_USER_ERROR


def let_go(error: BaseException | None) -> None:
    """Clear the frames that an error went through. Prefect keeps errors, and frames hold connections open."""
    with warnings.catch_warnings():
        # Ctrl-C may come between the making of a coroutine and its first step
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__context__


def run_piped(command: Callable[[], int]) -> int:
    """Return a command's exit code, or that of SIGPIPE if a reader such as head has closed its output."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal's encoding, such as GBK, may lack a sign
        sys.stdout.reconfigure(errors="backslashreplace")
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
