import os

import pytest

from data.cores import share
from data.refresh import RefreshSettings


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("400000 100000\n", 4), ("250000 100000", 2), ("50000 100000", 1), ("max 100000\n", None), ("", None)],
)
def test_a_container_may_use_as_many_cores_as_its_limit_says(tmp_path, write, limit, expected):
    assert share(write("cpu.max", limit)) == expected
    assert share(tmp_path / "none") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux binds processes to cores")
def test_a_process_that_is_bound_to_a_core_has_a_worker_for_it_alone():
    usual = os.sched_getaffinity(0)  # of this thread
    os.sched_setaffinity(0, [min(usual)])
    workers = RefreshSettings(corpus="law").workers
    os.sched_setaffinity(0, usual)
    assert workers == 1 <= RefreshSettings(corpus="law").workers <= (os.cpu_count() or 1)
