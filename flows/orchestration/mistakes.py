"""Errors that are not the program's, each as a line: for the user of a command, or of a deployment's form."""

from __future__ import annotations

import logging
import re
import sys
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING

from data import terminal
from data.options import names_of
from flows.orchestration.logs import log
from flows.orchestration.settings import JOBS

if TYPE_CHECKING:
    from prefect.states import State


def explain(error: BaseException) -> str | None:
    """A line on an error that is not the program's; None for any other."""
    if line := terminal.explain(error):
        return line
    if isinstance(error, BrokenExecutor):
        return "a worker process was killed, most often for want of memory: run it again with fewer --workers"
    if "prefect" in sys.modules:
        from httpx import TransportError

        if isinstance(error, TransportError):
            return "Prefect's server does not answer any more; what was finished is kept: run the same again"
    return None


def in_words_of_the_form(line: str) -> str:
    """Name options as a deployment's parameters.

    >>> in_words_of_the_form("pass --quality.min-characters; jixu doctor --fix")
    'pass quality.min_characters; jixu doctor --fix'
    """
    names = {name for options in JOBS.values() for name in names_of(options)}

    def name(option: re.Match[str]) -> str:
        parameter = option[1].replace("-", "_")
        return parameter if parameter in names else option[0]

    return re.sub(r"--([a-z][a-z.-]*[a-z])", name, line)


def failed(error: Exception) -> State:
    """A state for an explained error of a deployment's run, with a line in the log and no traceback."""
    from prefect.states import Failed

    drop_tracebacks()
    line = in_words_of_the_form(explain(error) or str(error))
    log(line, logging.ERROR)
    terminal.let_go(error)
    return Failed(message=line, data=error)


def drop_tracebacks() -> None:
    """Keep Prefect from logging tracebacks of errors that are explained in a line, and of a cancel."""
    for name in ("prefect.flow_runs", "prefect.task_runs", "prefect.engine"):
        logging.getLogger(name).addFilter(_is_of_the_program)


def _is_of_the_program(record: logging.LogRecord) -> bool:
    from prefect.exceptions import CancelledRun

    error = record.exc_info[1] if record.exc_info else None
    return error is None or not (isinstance(error, CancelledRun) or explain(error))
