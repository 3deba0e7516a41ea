"""refresh-corpus as its command does it where no server is named: the plain functions. Knows no Prefect: its
short-lived server takes longer to start than many a refresh.
"""

from __future__ import annotations

from data.catalog import describe_drift, measure_drift, open_workspace
from data.errors import InputError
from data.refresh import ProcessRunner, describe_new, describe_standing, plan_refresh, refresh
from data.storage import is_remote
from data.workers import worker_pool
from flows.orchestration.command import HUNG
from flows.orchestration.dask import RunnerName
from flows.orchestration.settings import BESIDE_REFRESH, refresh_settings


def refresh_plainly(
    runner: RunnerName, then_pretrain_if: str | None, task_hours: float, **parameters: object
) -> str | None:
    """Refresh, and what a person is told of it. None, and nothing done, where that takes Prefect: on a Dask
    cluster, with pretraining to follow, and for sources at URLs, whose reading is tried twice.
    """
    settings = refresh_settings(**{k: v for k, v in parameters.items() if k not in BESIDE_REFRESH})
    is_elsewhere = any(is_remote(file.uri) for file in plan_refresh(settings).files)
    if runner != "processes" or then_pretrain_if or is_elsewhere:
        return None
    try:
        with worker_pool(settings.workers) as pool:
            result = refresh(settings, ProcessRunner(pool, settings.workers, 3600 * task_hours))
    except TimeoutError:
        raise InputError(HUNG) from None
    if not result.is_new:
        return describe_standing(result)
    lines = describe_new(result)
    if result.version > 1:
        with open_workspace(settings.workspace) as statistics:
            drift = measure_drift(statistics, result.corpus)
        lines += [describe_drift(drift)] if drift else []
    return "\n".join(lines)
