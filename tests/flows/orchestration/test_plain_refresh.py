"""A refresh by its command where no server is named: what the flow does, without Prefect."""

import os
import signal
import subprocess
import sys

import fsspec
import psutil
import pytest
from filelock import FileLock

from data.catalog import read_catalog, require_version, version_shards
from data.errors import InputError
from data.workspace import Workspace
from flows.orchestration.arguments import make_parser
from flows.orchestration.plain_refresh import refresh_plainly
from tests.conftest import few_texts
from tests.flows.orchestration.test_commands import ROOT, run
from tests.flows.serving import wait_until

# imports of Prefect fail, and its server could not begin
WITHOUT_PREFECT = """
import sys
sys.modules["prefect"] = None
from flows.orchestration.command import run
raise SystemExit(run("refresh_corpus", sys.argv[1:]))
"""


def arguments(workspace, vocabulary, *sources):
    given = ["--corpus", "tea", "--tokenizer", vocabulary, "--workers", 1, "--workspace", workspace]
    return [str(part) for part in (*given, *(part for path in sources for part in ("--source", path)))]


def shards(workspace):
    with read_catalog(Workspace(workspace)) as db:
        return version_shards(db, require_version(db, "tea"))


@pytest.mark.slow
def test_it_is_the_refresh_of_the_flow_without_prefect(tmp_path, vocabulary_file, prefect_server):
    general, domain = few_texts(tmp_path)
    for sources in ([domain], [domain, general], [domain, general]):
        command = [sys.executable, "-c", WITHOUT_PREFECT]
        plain = subprocess.run(
            [*command, *arguments(tmp_path / "plain", vocabulary_file, *sources)],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert plain.returncode == 0, plain.stderr
        given = arguments(tmp_path / "flow", vocabulary_file, *sources)
        assert plain.stdout == run("refresh_corpus", *given, **prefect_server).stdout
    assert "nothing changed: tea version 2 stands" in plain.stdout
    assert not (tmp_path / "plain" / ".prefect").exists()
    assert shards(tmp_path / "plain") == shards(tmp_path / "flow")
    for shard in shards(tmp_path / "flow"):
        for path in (shard.path, shard.documents_path):
            assert (tmp_path / "plain" / path).read_bytes() == (tmp_path / "flow" / path).read_bytes()


def test_what_is_new_is_told_with_its_drift(tmp_path, vocabulary_file):
    general, domain = few_texts(tmp_path)
    parse = make_parser("refresh_corpus").parse_args
    told = refresh_plainly(**vars(parse(arguments(tmp_path / "w", vocabulary_file, domain))))
    assert told.startswith("tea version 1: 12 documents") and "drift" not in told
    grown = vars(parse(arguments(tmp_path / "w", vocabulary_file, domain, general)))
    told = refresh_plainly(**grown).splitlines()
    assert told[0].startswith("tea version 2: ") and told[-1].startswith("drift of the new documents 0.")
    assert refresh_plainly(**grown).startswith("nothing changed: tea version 2 stands")


def test_it_leaves_to_prefect_what_takes_it(tmp_path, vocabulary_file):
    _, domain = few_texts(tmp_path)
    given = vars(make_parser("refresh_corpus").parse_args(arguments(tmp_path / "w", vocabulary_file, domain)))
    fsspec.filesystem("memory").pipe("/domain.jsonl", domain.read_bytes())
    for change in (
        {"then_pretrain_if": "drift>0.2"},
        {"runner": "dask", "dask_address": "tcp://127.0.0.1:8786"},
        {"source": ["memory://domain.jsonl"]},
    ):
        assert refresh_plainly(**given | change) is None
    assert not (tmp_path / "w" / "shards").exists()


def test_a_task_that_takes_too_long_is_told_in_a_line_and_nothing_is_made(tmp_path, vocabulary_file):
    _, domain = few_texts(tmp_path)
    given = vars(make_parser("refresh_corpus").parse_args(arguments(tmp_path / "w", vocabulary_file, domain)))
    with pytest.raises(InputError, match="a task took longer than --task-hours"):
        refresh_plainly(**given | {"task_hours": 1e-6})
    assert not Workspace(tmp_path / "w").catalog.exists()
    assert refresh_plainly(**given).startswith("tea version 1")


INTERRUPTED_IN_A_QUERY = """
import os, signal, sys, threading
import duckdb
import flows.orchestration.plain_refresh
from flows.orchestration.command import run
signal.signal(signal.SIGINT, signal.default_int_handler)

def refresh(*given):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    # of one thread, as DuckDB does not end others for a signal
    db = duckdb.connect(config={"threads": 1})
    db.execute("select sum(a.range * b.range) from range(1000000) a, range(1000000) b")

flows.orchestration.plain_refresh.refresh = refresh
raise SystemExit(run("refresh_corpus", sys.argv[1:]))
"""


def test_ctrl_c_in_a_query_is_told_in_a_line(tmp_path, vocabulary_file):
    _, domain = few_texts(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_A_QUERY, *arguments(tmp_path / "w", vocabulary_file, domain)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (75, "refresh_corpus: stopped\n")


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_too_and_the_same_again_goes_on(tmp_path, vocabulary_file):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("a shell had the signal ignored")
    _, domain = few_texts(tmp_path)
    given = arguments(tmp_path / "w", vocabulary_file, domain)
    lock = Workspace(tmp_path / "w").lock("catalog")
    lock.parent.mkdir(parents=True)
    with FileLock(lock):  # it cannot commit and end
        command = [sys.executable, "-m", "flows.refresh_corpus", *given]
        with subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as begun:
            wait_until(lambda: list((tmp_path / "w").rglob("*.parquet")))
            workers = psutil.Process(begun.pid).children(recursive=True)
            os.killpg(begun.pid, signal.SIGINT)  # as a terminal does
            assert begun.stderr.read() == "refresh_corpus: stopped\n"
    assert begun.returncode == 75 and workers and not psutil.wait_procs(workers, 60)[1]
    assert "tea version 1" in run("refresh_corpus", *given).stdout
