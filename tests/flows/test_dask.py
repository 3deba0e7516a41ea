"""A refresh on a real Dask cluster of two worker processes: the same bytes as on this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from data.catalog import read_catalog, require_version, version_shards
from data.planning import building_plan, plan, reading_tasks
from data.records import InputError
from data.refresh import RefreshSettings, build, commit, divide, locked, read, refresh
from data.workspace import Workspace
from flows.runners import check_runner, open_pool
from tests.flows.test_commands import run

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    # processes of their own, no page of their own
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def settings(tmp_path, samples, vocabulary_file):
    """The sample in four files."""
    lines = (samples / "tea.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text("".join(lines[number::4]), encoding="utf-8")
    return RefreshSettings(
        corpus="tea",
        sources=tuple(str(tmp_path / f"{number}.jsonl") for number in range(4)),
        workspace=tmp_path / "here",
        tokenizer=str(vocabulary_file),
        workers=1,
    )


def refresh_on(pool, settings):
    planned = plan(settings)
    with locked(Workspace(settings.workspace), settings.corpus):
        sources = [
            future.result() for future in [pool.submit(read, *task) for task in reading_tasks(planned)]
        ]
        division = divide(planned, sources)
        small = building_plan(planned)
        building = [pool.submit(build, piece, small, division.sop) for piece in division.assignment.pieces]
        return commit(planned, sources, division, [future.result() for future in building])


def shards(workspace):
    with read_catalog(Workspace(workspace)) as db:
        return version_shards(db, require_version(db, "tea"))


@pytest.mark.slow
def test_two_workers_make_the_same_shards_byte_for_byte(cluster, settings, monkeypatch):
    monkeypatch.setattr("data.refresh.SHARD_CHARACTERS", 8000)
    refresh(settings)
    there = settings.workspace.parent / "there"
    with open_pool("dask", 2, cluster.scheduler_address) as pool:
        result = refresh_on(pool, RefreshSettings(**{**vars(settings), "workspace": there}))
        hosts = {future.result() for future in [pool.submit(process_id, n) for n in range(8)]}
    assert result.new_shards > 4 and len(hosts) == 2  # both workers were there for it
    assert shards(there) == shards(settings.workspace)
    for shard in shards(there):
        assert (there / shard.path).read_bytes() == (settings.workspace / shard.path).read_bytes()
        assert (there / shard.documents_path).read_bytes() == (
            settings.workspace / shard.documents_path
        ).read_bytes()


def process_id(number):
    import os
    import time

    time.sleep(0.05)  # so that one worker does not do them all
    return os.getpid()


@pytest.mark.slow
def test_the_command_works_on_the_cluster(cluster, settings, tmp_path):
    arguments = ["--corpus", "tea", "--tokenizer", settings.tokenizer, "--runner", "dask"]
    arguments += [part for source in settings.sources for part in ("--source", source)]
    address = ["--dask-address", cluster.scheduler_address]
    done = run("refresh_corpus", *arguments, *address, "--workspace", tmp_path / "w")
    assert done.returncode == 0 and "tea version 1" in done.stdout, done.stderr


def test_what_a_cluster_cannot_follow_is_refused(settings):
    planned = plan(settings)
    check_runner("dask", "tcp://127.0.0.1:8786", planned)
    check_runner("processes", None, planned)
    for runner, address in (("dask", None), ("processes", "tcp://127.0.0.1:8786")):
        with pytest.raises(InputError, match="belong together"):
            check_runner(runner, address, planned)
    elsewhere = replace(planned, settings=replace(settings, workspace=Path("w")))
    with pytest.raises(InputError, match="w: on a Dask cluster paths must be absolute"):
        check_runner("dask", "tcp://127.0.0.1:8786", elsewhere)


def test_an_address_where_nothing_listens_is_refused(monkeypatch):
    monkeypatch.setattr("flows.runners.CONNECT_SECONDS", 1)
    with (
        pytest.raises(InputError, match="no Dask scheduler at tcp://127.0.0.1:9"),
        open_pool("dask", 1, "tcp://127.0.0.1:9"),
    ):
        pass
