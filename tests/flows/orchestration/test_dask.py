"""A refresh by prefect-dask on a real Dask cluster of two worker processes: the same bytes as here."""

from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import FlowRunSort

from data.cleaning import GuardRules, QualityRules
from data.errors import InputError
from data.refresh import refresh
from flows.orchestration.dask import check_cluster, open_cluster
from tests.commands import complete
from tests.conftest import sample_texts
from tests.corpora import shards_of

distributed = pytest.importorskip("distributed")
pytest.importorskip("prefect_dask")


@pytest.fixture
def corpus(tea):
    """The sample in four files, with each text three times: smaller ones are read together."""
    texts = sample_texts()
    for number in range(4):
        tea.put(str(number), *texts[number::4] * 3)
    return tea.changed(source=tuple(str(tea.raw / f"{number}.jsonl") for number in range(4)))


@pytest.mark.slow
def test_two_workers_make_the_same_shards_byte_for_byte(corpus, prefect_server):
    """By the command: tasks run on the cluster, their states are told by its workers."""
    here, there = corpus.root, corpus.root.parent / "there"
    refresh(corpus.settings)
    given = {"corpus": "tea", "tokenizer": corpus.settings.tokenizer, "source": corpus.settings.source}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        given |= {"running": {"dask_address": cluster.scheduler_address}, "workspace": there}
        with distributed.get_task_stream(client) as stream:
            assert "tea version 1" in complete("refresh-corpus", given, **prefect_server)
        assert len({task["worker"] for task in stream.data}) == 2, stream.data  # both were there for it
    assert shards_of(there) == shards_of(here)
    for shard in shards_of(there):
        for path in (shard.path, shard.documents_path):
            assert (there / path).read_bytes() == (here / path).read_bytes()
    with get_client(sync_client=True) as client:
        flow_run, *_ = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
        named = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
        states = {one.name: one.state_name for one in client.read_task_runs(flow_run_filter=named)}
    assert set(states.values()) == {"Completed"}
    assert {name for name in states if name.startswith(("read-source", "build-shard"))} == {
        *(f"read-source {number}.jsonl" for number in range(4)),
        "build-shard tea 1/1",
    }
    assert {name.split()[0] for name in states} >= {"divide", "quality-gates", "commit"}, states


def test_what_a_cluster_cannot_follow_is_refused(corpus):
    planned, settings = corpus.plan(), corpus.settings
    for address in ("tcp://127.0.0.1:8786", "localhost:8786"):
        check_cluster(address, planned)
    for name, relative in (
        ("w", replace(planned, settings=replace(settings, workspace=Path("w")))),
        ("t.txt", replace(planned, settings=replace(settings, dictionary=("t.txt",)))),
        ("dev.tsv", replace(planned, settings=replace(settings, guard=GuardRules(files=("dev.tsv",))))),
        ("ads.txt", replace(planned, settings=replace(settings, quality=QualityRules(blocklist="ads.txt")))),
        ("vocab.txt", replace(planned, tokenizer_path=Path("vocab.txt"))),
        ("a.txt", replace(planned, files=(replace(planned.files[0], uri="a.txt"),))),
    ):
        with pytest.raises(InputError, match=f"^{name}: on a Dask cluster paths must be absolute"):
            check_cluster("tcp://127.0.0.1:8786", relative)
    far = replace(planned, files=(replace(planned.files[0], uri="s3://tea/a.txt"),))
    check_cluster("tcp://127.0.0.1:8786", far)
    with pytest.raises(InputError, match="set PREFECT_API_URL to one that every machine reaches"):
        check_cluster("tcp://10.0.0.1:8786", planned)


def test_a_cluster_that_is_not_there_or_has_no_workers_is_refused(monkeypatch):
    monkeypatch.setattr("flows.orchestration.dask.CONNECT_SECONDS", 2)
    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as empty:
        for address in ("tcp://127.0.0.1:9", empty.scheduler_address):
            with (
                pytest.raises(InputError, match=f"no Dask scheduler with workers at {address}"),
                open_cluster(address),
            ):
                pass
