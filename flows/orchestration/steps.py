"""A piece of work as a Prefect task: what an orchestrator adds (name, state, retry) and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError
from typing import TypeVar

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import Cancelled

T = TypeVar("T")


def _call(label: str, work: Callable[[], T]) -> T | State:
    # the work is a closure: Prefect neither walks through nor keeps what it closes over
    try:
        return work()
    except CancelledError:
        return Cancelled(message="The run ended before it was done.")


def _may_pass(task: Task, run: TaskRun, state: State) -> bool:
    """Whether another try can help: not with a refused input, nor where a pool lost a worker."""
    try:
        state.result()
    except (ValueError, BrokenExecutor):  # InputError and ConfigError are ValueErrors
        return False
    except Exception:
        return True
    return False


def step(name: str, *, retries: int = 0) -> Task:
    """A task that runs `work()` under a name people read; retries only where a retry can help."""
    return task(
        _call,
        name=name,
        task_run_name=f"{name} {{label}}",
        retries=retries,
        retry_delay_seconds=5,
        retry_condition_fn=_may_pass,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
