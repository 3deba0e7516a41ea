"""The scratch database of a refresh: DuckDB over the staged files, which spills beside them if it must."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread
from typing import TypeVar

import duckdb

from data.catalog import quoted

T = TypeVar("T")
# a thread with less memory reads what it spilled again and again, or fails for want of it
_MOST_THREADS, _THREAD_MEGABYTES, _LEAST_MEGABYTES = 8, 100, 400


def connect(staging: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database that spills beside the staged files, with up to some threads, on which its
    results do not depend.
    """
    staging.mkdir(parents=True, exist_ok=True)
    threads = min(threads, _MOST_THREADS)
    memory = f"{max(_LEAST_MEGABYTES, threads * _THREAD_MEGABYTES)}MB"
    spill = str(staging / "duckdb")
    return duckdb.connect(config={"temp_directory": spill, "memory_limit": memory, "threads": threads})


def interruptible(db: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Return what `work` does; an exception that a signal raises meanwhile, such as KeyboardInterrupt, ends
    its query of `db`.

    The work runs in another thread: in this one DuckDB would replace the exception, and wait for its own
    threads, which finish their part unless the connection is interrupted.
    """
    working: Future[T] = Future()
    try:
        Thread(target=_work, args=(working, work)).start()
        return working.result()
    finally:
        while not working.cancel() and not working.done():
            db.interrupt()
            wait([working], 0.1)  # again: it may have been between two queries


def _work(working: Future[T], work: Callable[[], T]) -> None:
    # no closure: an error's frames would keep it, and so the connection, when they are cleared
    if working.set_running_or_notify_cancel():
        try:
            working.set_result(work())
        except BaseException as error:
            working.set_exception(error)


def distinct(db: duckdb.DuckDBPyConnection, column: str, rows: str) -> list[int]:
    """List the numbers in a column, ascending."""
    query = f"select distinct {column} from {rows} order by {column}"
    return [number for (number,) in db.execute(query).fetchall()]


def copy_to(db: duckdb.DuckDBPyConnection, select: str, path: Path) -> int:
    """Write the rows of a query to a Parquet file; return how many there are."""
    ((count,),) = db.execute(f"copy ({select}) to {quoted(str(path))} (format parquet)").fetchall()
    return count
