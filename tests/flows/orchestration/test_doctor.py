"""What doctor finds in an installation, a workspace and a server."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Cancelled, Completed, Crashed, Failed, Scheduled

from albert.runtime import device_names, triton_error
from data.catalog import end_killed_run, write_catalog
from data.locks import corpus_lock
from data.workspace import Workspace
from flows.orchestration.doctor import ROUNDING, check_devices, check_runs, check_schedules, check_workspace
from flows.orchestration.slots import sole_training
from tests.commands import complete, run, run_here
from tests.corpora import Corpus, record


@pytest.fixture(scope="module")
def sound(tmp_path_factory, vocabulary_file):
    """A workspace with one short document."""
    corpus = Corpus.begin(tmp_path_factory.mktemp("doctor"), vocabulary_file, corpus="茶")
    corpus.put("tea", "绿茶不发酵。红茶全发酵。")
    corpus.refresh()
    return corpus


@pytest.fixture
def corpus(sound, tmp_path):
    shutil.copytree(sound.root.parent, tmp_path, dirs_exist_ok=True)
    return sound.changed(workspace=tmp_path / "w", source=(str(tmp_path / "raw"),))


def findings_of(corpus):
    return {one.what.split(",")[0]: one for one in check_workspace(corpus.place)}


def bad(corpus):
    return [one for one in check_workspace(corpus.place) if one.level == "bad"]


def test_a_healthy_workspace_ends_well_and_a_deleted_shard_is_repaired_and_a_dead_server_found(corpus):
    shown = complete("doctor", {"workspace": corpus.root})
    assert "prefect 3." in shown and "4 file(s) of its versions checked" in shown
    assert not any(line.startswith("bad") for line in shown.splitlines())
    (shard,) = corpus.place.shards("茶").glob("*.parquet")
    shard.unlink()
    done = run("doctor", "--workspace", corpus.root, PREFECT_API_URL="http://127.0.0.1:9/api")
    assert done.returncode == 1 and f"{shard.name} (gone)" in done.stdout
    assert "--fix repairs it" in done.stdout and "start it with make serve" in done.stdout, done.stdout
    assert "refresh 茶 now" in complete("doctor", {"workspace": corpus.root, "fix": True})


def test_changed_and_unused_files_are_found_and_the_unused_removed(corpus):
    (shard,) = corpus.place.shards("茶").glob("*.parquet")
    stray = shard.with_name("stray.parquet")
    stray.write_bytes(b"12345")
    shard.write_bytes(shard.read_bytes() + b"0")
    findings = findings_of(corpus)
    damaged = findings["1 file(s) of corpus 茶 are not as committed"]
    assert damaged.level == "bad" and damaged.what.endswith(f"first: shards/茶/{shard.name} (changed)")
    unused = findings["1 file(s) that no version uses"]
    assert unused.level == "note" and unused.what.endswith(", 5 bytes, first: shards/茶/stray.parquet")
    with corpus_lock(corpus.place, "茶"):  # as while it is refreshed: that is no fault
        assert [one.what for one in bad(corpus)] == [damaged.what]
        assert any("corpus '茶' is being refreshed" in what for what in findings_of(corpus))
    assert unused.fix() == "removed 1 file(s)"
    assert not stray.exists() and shard.exists()


def test_files_that_only_older_versions_lack_call_for_no_rebuilding(corpus):
    """A version that was trained on stays, so nothing would end it."""
    (shard,) = corpus.place.shards("茶").glob("*.parquet")
    corpus.put("tea", "山泉水最好。井水次之。")
    corpus.refresh()
    shard.unlink()
    older = findings_of(corpus)["1 file(s) of older versions of corpus 茶 are not as committed"]
    assert older.level == "note" and older.fix is None and not bad(corpus)


def test_a_deleted_catalog_is_restored(corpus):
    corpus.place.catalog.unlink()
    (lost,) = bad(corpus)
    assert "catalog.duckdb is gone: jixu doctor --fix restores it" in lost.what
    assert lost.fix() == "restored 茶 version 1" and not bad(corpus)


def test_a_workspace_that_is_missing_or_a_file_is_reported(tmp_path):
    (tmp_path / "file").touch()
    missing, file = ("w", "note", "no workspace"), ("file", "bad", "cannot be made (File exists)")
    for name, level, words in (missing, file):
        (one,) = check_workspace(Workspace(tmp_path / name))
        assert one.level == level and words in one.what
    assert not (tmp_path / "w").exists()
    room, empty = check_workspace(Workspace(tmp_path))
    assert room.level == "ok" and "GiB free on its disk" in room.what
    assert (empty.level, empty.what[:10]) == ("note", "no catalog")


def test_a_run_whose_process_was_killed_is_found_and_no_longer_called_running(corpus):
    for name, status in (("killed", "running"), ("at-work", "running"), ("done", "completed")):
        record(corpus.place, name, status, corpus="茶", metrics={"step": 5})
    with sole_training(corpus.place, "at-work"):
        (finding,) = check_runs(corpus.place)
        assert finding.what.startswith("run killed is marked as running") and finding.level == "note"
        assert "killed failed" in finding.fix()
        assert not list(check_runs(corpus.place))
        end_killed_run(corpus.place, "done")
    rows = corpus.ask("select run, status, metrics from pretraining_runs order by run")
    assert [row[:2] for row in rows] == [("at-work", "running"), ("done", "completed"), ("killed", "failed")]
    assert json.loads(rows[2][2])["step"] == 5 and "was killed" in json.loads(rows[2][2])["error"]


@pytest.mark.parametrize(("version", "age"), [(99, "a newer"), (1, "an older")])
def test_a_catalog_of_another_version_is_reported(corpus, version, age):
    with write_catalog(corpus.place) as db:
        db.execute("update meta set catalog_version = ?", [version])
    done = run_here("doctor", "--fix", "--workspace", corpus.root)
    assert done.returncode == 1 and f"written by {age} jixu (catalog {version}" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_triton_check_allows_rounding():
    # in Triton's interpreter where there is no GPU
    assert triton_error("cpu" if device_names() == ("cpu",) else "cuda") < ROUNDING


@pytest.mark.parametrize(
    ("measure", "level", "words"),
    [
        (lambda _: ROUNDING / 100, "ok", "differs from its torch reference by 1.0e-06"),
        (lambda _: ROUNDING * 2, "bad", "differs from its torch reference by 2.0e-04"),
        (Mock(side_effect=RuntimeError("no\nptxas")), "bad", "RuntimeError: no ptxas; JIXU_KERNELS=torch"),
    ],
    ids=["sound", "wrong", "refused"],
)
def test_a_gpu_whose_kernels_are_wrong_or_do_not_run_is_bad(monkeypatch, measure, level, words):
    monkeypatch.setattr("albert.runtime.describe_devices", lambda: ["one"])
    monkeypatch.setattr("albert.runtime.triton_error", measure)
    _, gpu, kernel = check_devices()
    assert gpu.what == "GPU one" and kernel.level == level and words in kernel.what


@flow
def brew():
    pass


@pytest.fixture
def scheduled(prefect_server):
    """A client and a deployment with an active schedule; the server plans no runs, as it has no scheduler."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(brew), "daily")
        client.create_deployment_schedules(deployment, [(CronSchedule(cron="0 3 * * *"), True)])
        yield client, deployment
        client.delete_deployment(deployment)


def verdicts(now):
    return [(one.level, one.what) for one in check_schedules(now) if "brew/daily" in one.what]


def test_a_scheduler_that_plans_nothing_and_a_late_run_are_bad(scheduled):
    client, deployment = scheduled
    soon = datetime.now(UTC) + timedelta(minutes=10)

    def verdict(*times):
        for time in times:
            client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=time))
        (verdict,) = verdicts(soon)
        return verdict

    level, what = verdict()
    assert level == "bad" and "the server plans no run of it" in what
    due = soon - timedelta(minutes=4)
    planned = f"schedule of brew/daily is active, next run at {due:%Y-%m-%d %H:%M} UTC"
    assert verdict(due) == ("ok", planned)
    late = "a scheduled run of brew/daily is 10 minutes late: no worker starts it"
    assert verdict(soon - timedelta(minutes=10)) == ("bad", late)
    (schedule,) = client.read_deployment_schedules(deployment)
    for active, paused in ((False, False), (True, True)):
        client.update_deployment_schedule(deployment, schedule.id, active=active)
        client.update_deployment(deployment, DeploymentUpdate(paused=paused))
        level, what = verdict()
        assert level == "note" and "is not active" in what


def test_a_last_run_that_failed_or_crashed_is_bad_until_one_completes(scheduled):
    client, deployment = scheduled

    def last_after(state):
        run = client.create_flow_run_from_deployment(deployment).id
        client.set_flow_run_state(run, state, force=True)
        found = [what for level, what in verdicts(datetime.now(UTC)) if level == "bad"]
        return found, client.read_flow_run(run).end_time

    for state in (Failed(message="no source given:\npass source"), Crashed(message="SIGKILL")):
        (what,), ended = last_after(state)
        why = " ".join(state.message.split())
        assert what == f"the last run of brew/daily: {state.name}, {ended:%Y-%m-%d %H:%M} UTC, {why}"
    assert last_after(Cancelled())[0] == [what]
    assert not last_after(Completed())[0]
