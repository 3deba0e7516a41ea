"""Lines that people read: in the log of a deployment's run, or from a command."""

from __future__ import annotations

import logging
import os
import sys


def is_deployed() -> bool:
    """Whether this process was begun for a deployment's run; `prefect.runtime` asks the server each time."""
    return "PREFECT__FLOW_RUN_ID" in os.environ


def log(text: str, level: int = logging.INFO) -> None:
    """Put each line into the log of a deployment's run; a command prints its result by itself."""
    if is_deployed():
        # takes seconds to import
        from prefect import get_run_logger

        for line in text.splitlines():
            get_run_logger().log(level, line)


def say(text: str) -> None:
    """Tell a person at once: in the log of a deployment's run, or on a command's stderr."""
    log(text)
    if not is_deployed():
        # in one write: trainings speak from threads, and their lines ran into one another
        print(f"{text}\n", end="", file=sys.stderr, flush=True)
