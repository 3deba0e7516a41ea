"""Where sources are read and shards built: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from data.planning import Plan
from data.records import InputError
from data.refresh import worker_pool
from data.storage import is_remote

Runner = Literal["processes", "dask"]
CONNECT_SECONDS = 20


@contextmanager
def open_pool(runner: Runner, workers: int, dask_address: str | None) -> Iterator[Executor]:
    """What calls of functions are submitted to. Raises InputError where there is no cluster."""
    if runner == "processes":
        with worker_pool(workers) as pool:
            yield pool
        return
    # the cluster runs the functions alone: its workers need neither Prefect nor the way to its server
    from distributed import Client

    try:
        client = Client(dask_address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (TimeoutError, OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler at {dask_address}: {' '.join(str(error).split())[:200]}"
        ) from None
    with client:
        # not pure: a retry is to run again, not to be given what was remembered
        yield client.get_executor(pure=False)


def check_runner(runner: Runner, dask_address: str | None, plan: Plan | None = None) -> None:
    """Raise InputError for an address without Dask, none with it, and paths that others cannot follow."""
    if (runner == "dask") != bool(dask_address):
        raise InputError("runner dask and a dask_address, such as tcp://10.0.0.1:8786, belong together")
    if runner == "dask" and plan is not None and (relative := _relative_paths(plan)):
        raise InputError(
            f"{relative[0]}: on a Dask cluster paths must be absolute, and on storage that every worker has"
        )


def _relative_paths(plan: Plan) -> Sequence[str]:
    settings = plan.settings
    named = [settings.workspace, plan.tokenizer_path, *settings.dictionaries, *settings.guard.files]
    named += [file.uri for file in plan.files if not is_remote(file.uri)]
    named += [settings.quality.blocklist] if settings.quality.blocklist else []
    return [str(path) for path in named if not Path(path).is_absolute()]
