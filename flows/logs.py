"""Lines for people: in the log of a deployment's run, or from a command."""

from __future__ import annotations

import sys

from prefect import get_run_logger, runtime


def log(text: str) -> None:
    """Put each line into the log of a deployment's run; a command prints its result by itself."""
    if runtime.deployment.id:
        for line in text.splitlines():
            get_run_logger().info(line)


def say(text: str) -> None:
    """The same for what a person is to know at once: a command prints it on stderr."""
    log(text)
    if not runtime.deployment.id:
        print(text, file=sys.stderr, flush=True)
