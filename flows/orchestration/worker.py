"""worker: Prefect's process worker, whose runs write checkpoints before it ends, however it is asked to.

Prefect's own kills its runs when it is asked to stop. When it is killed itself, they notice and end in order.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

from cyclopts import Parameter

from data.errors import InputError
from data.workers import end, end_with_parent
from flows.orchestration.serve import stop_on_signal
from flows.orchestration.servers import STOP_SECONDS, begin


def worker(*options: Annotated[str, Parameter(allow_leading_hyphen=True)], pool: str = "local") -> int:
    """Prefect's process worker, whose runs write checkpoints before it stops.

    Args:
        options: Further options of `prefect worker start`, such as --limit 2.
        pool: Work pool; it is made if there is none of the name.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise InputError("no PREFECT_API_URL: a worker asks a server for runs; set it to that server's API")
    stopping = stop_on_signal()
    process = begin(["flows.orchestration.worker", str(os.getpid()), "--pool", pool, *options])
    try:
        while process.poll() is None and not stopping.wait(0.2):
            pass
        return 0 if stopping.is_set() else process.returncode
    finally:
        end([process], STOP_SECONDS, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    from prefect.cli import app as prefect

    from flows.orchestration.lifecycle import WORKER

    os.environ[WORKER] = str(os.getpid())
    sys.argv[1:2] = ["worker", "start", "--type", "process"]
    prefect()
