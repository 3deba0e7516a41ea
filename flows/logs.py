"""Lines for people in the log of a run."""

from __future__ import annotations

from prefect import get_run_logger, runtime


def log(text: str) -> None:
    """Put each line into the log of a deployment's run; a command prints what it has to say by itself."""
    if runtime.deployment.id:
        for line in text.splitlines():
            get_run_logger().info(line)
