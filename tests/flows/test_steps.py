"""What a task adds to a function: another try where that can help, and an end where it hangs."""

import os
import time

import pytest
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from data.records import InputError
from flows.runners import open_runner
from flows.steps import step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def server():
    with prefect_test_harness(server_startup_timeout=300):
        yield


@flow
def try_twice(work):
    return step("try", retries=1).with_options(retry_delay_seconds=0)("it", work)


def failing(errors):
    """Work that raises one error after the other, then tells how often it was called."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return len(calls)

    return work, calls


def test_what_may_pass_is_tried_again_and_what_was_refused_is_not():
    work, calls = failing([OSError("connection reset")])
    assert try_twice(work) == 2
    work, calls = failing([InputError("no [MASK] in vocab.txt")] * 2)
    with pytest.raises(InputError, match="no .MASK."):
        try_twice(work)
    assert len(calls) == 1
    work, calls = failing([OSError("connection reset")] * 3)
    with pytest.raises(OSError, match="connection reset"):
        try_twice(work)
    assert len(calls) == 2


def hang(path):
    path.write_text(str(os.getpid()))
    time.sleep(600)


@flow
def read_what_hangs(path):
    with open_runner("processes", 1, None) as submit:
        return submit(step("read-source").with_options(timeout_seconds=20), "it", hang, path).result()


def test_a_task_that_hangs_fails_and_its_process_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("data.refresh.END_SECONDS", 1)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="timed out|exceeded|^$"):
        read_what_hangs(tmp_path / "pid")
    assert time.monotonic() - began < 300
    process = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
