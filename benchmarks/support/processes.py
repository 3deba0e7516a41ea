"""Run a function in a new process, so that the peak memory of the process is that of the function."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_new_process(work: Callable[..., T], *arguments: object) -> T:
    """Return what `work` returns in a process that imports everything anew."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()
