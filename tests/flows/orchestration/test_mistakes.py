"""Errors as lines; test_server.py reads those of deployments' runs."""

import errno
import logging
from concurrent.futures.process import BrokenProcessPool

from prefect.exceptions import CancelledRun

from data.errors import InputError, disk_trouble
from flows.orchestration.mistakes import drop_tracebacks, explain


def test_a_disk_that_is_full_or_read_only_and_a_lost_worker_are_explained_and_other_errors_are_not():
    error = OSError(errno.EROFS, "Read-only file system", "/w/catalog.duckdb")
    assert disk_trouble(error) == "/w/catalog.duckdb cannot be written to or read (Read-only file system)"
    for number in (errno.EACCES, errno.EPERM, errno.EIO):  # without a name, as of fsync
        assert disk_trouble(OSError(number, "")).startswith("a file cannot be written to or read (")
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert "the disk is full" in disk_trouble(OSError(number, "in another language"))
    # as DuckDB and Arrow say it
    assert "the disk is full" in disk_trouble(RuntimeError("IO Error: No space left on device"))
    assert disk_trouble(OSError(errno.ECONNREFUSED, "Connection refused")) is None
    assert "with fewer --workers" in explain(BrokenProcessPool("a process was terminated abruptly"))
    assert "named kernels" in explain(ModuleNotFoundError(name="kernels.dispatch"))  # of another's
    for error in (ImportError(name="triton"), ValueError("a mistake of the program")):
        assert explain(error) is None


def test_an_explained_error_leaves_no_traceback_in_a_runs_log_and_a_bug_does(caplog):
    drop_tracebacks()
    logger = logging.getLogger("prefect.engine")
    explained = (InputError("no such corpus"), OSError(errno.ENOSPC, "full"), CancelledRun())
    for error in (*explained, KeyError("a bug")):
        try:
            raise error
        except Exception:
            logger.exception("Encountered exception")
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]
