"""A Dask cluster as the place where sources are read and shards built. Loads Prefect only to connect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from data.errors import InputError
from data.refresh import Plan
from data.storage import is_remote

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

# starts a task of `step` with its label and its work
Submit = Callable[[Any, str, Callable[[], object]], "PrefectFuture"]
CONNECT_SECONDS = 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@contextmanager
def open_cluster(address: str) -> Iterator[tuple[Submit, int]]:
    """Give a function that submits tasks to the cluster, and its number of threads.

    Prefect's own runner for Dask submits them; workers report their states. Raises InputError if there
    is no scheduler with workers.
    """
    from prefect_dask import DaskTaskRunner

    options = {"timeout": CONNECT_SECONDS, "set_as_default": False}
    with DaskTaskRunner(address=address, client_kwargs=options) as runner:
        try:
            runner.client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (TimeoutError, OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler with workers at {address}: {' '.join(str(error).split())[:200]}"
            ) from None

        def submit(task: Any, label: str, work: Callable[[], object]) -> PrefectFuture:
            return runner.submit(task, {"label": label, "work": work})

        yield submit, sum(runner.client.nthreads().values())


def check_cluster(dask_address: str, plan: Plan) -> None:
    """Raise InputError unless the workers of a cluster can reach all they need."""
    server = urlsplit(os.environ.get("PREFECT_API_URL", "http://127.0.0.1"))
    scheduler = urlsplit(f"//{dask_address.rpartition('//')[2]}")  # Dask takes tcp:// for granted
    if server.hostname in LOOPBACK and scheduler.hostname not in LOOPBACK:
        raise InputError(
            f"workers of {dask_address} report their tasks to Prefect's server: set PREFECT_API_URL to one "
            "that every machine reaches"
        )
    if relative := _relative_paths(plan):
        raise InputError(
            f"{relative[0]}: on a Dask cluster paths must be absolute, and on storage that every worker has"
        )


def _relative_paths(plan: Plan) -> list[str]:
    settings = plan.settings
    paths = [settings.workspace, plan.tokenizer_path, *map(Path, settings.dictionary + settings.guard.files)]
    paths += [Path(file.uri) for file in plan.files if not is_remote(file.uri)]
    paths += [Path(settings.quality.blocklist)] if settings.quality.blocklist else []
    return [str(path) for path in paths if not path.is_absolute()]
