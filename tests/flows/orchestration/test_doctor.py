"""What doctor finds in an installation, a workspace and a server."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Cancelled, Completed, Crashed, Failed, Scheduled

from albert.runtime import device_names, triton_error
from data.catalog import end_killed_run, read_catalog, record_run, write_catalog
from data.locks import corpus_lock
from data.workspace import Workspace
from flows.orchestration.doctor import (
    ROUNDING,
    check_devices,
    check_runs,
    check_schedules,
    check_workspace,
)
from flows.orchestration.slots import sole_training
from tests.commands import run, run_here
from tests.corpora import make_corpus


@pytest.fixture(scope="module")
def sound(tmp_path_factory, vocabulary_file):
    """A workspace with one short document."""
    folder = tmp_path_factory.mktemp("doctor")
    source = folder / "tea.txt"
    source.write_text("绿茶不发酵。红茶全发酵。", encoding="utf-8")
    make_corpus(folder / "w", "茶", source, vocabulary_file)
    return folder / "w"


@pytest.fixture
def workspace(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "w"))


def test_a_healthy_workspace_ends_well(workspace):
    done = run_here("doctor", "--workspace", workspace)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prefect 3." in done.stdout and "4 file(s) of its versions checked" in done.stdout
    assert not any(line.startswith("bad") for line in done.stdout.splitlines())


def test_a_deleted_shard_and_a_dead_server_are_found_and_the_shard_repaired(workspace):
    (shard,) = workspace.glob("shards/茶/*.parquet")
    shard.unlink()
    dead = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = run("doctor", "--workspace", workspace, **dead)
    assert done.returncode == 1 and f"{shard.name} (gone)" in done.stdout
    assert "start it with make serve" in done.stdout, done.stdout
    done = run_here("doctor", "--workspace", workspace, "--fix")
    assert done.returncode == 0 and "refresh 茶 now" in done.stdout, done.stdout + done.stderr


def findings_of(workspace):
    return {one.what.split(",")[0]: one for one in check_workspace(Workspace(workspace))}


def test_changed_and_unused_files_are_found_and_the_unused_removed(workspace):
    (shard,) = workspace.glob("shards/茶/*.parquet")
    stray = shard.with_name("stray.parquet")
    stray.write_bytes(b"12345")
    shard.write_bytes(shard.read_bytes() + b"0")
    findings = findings_of(workspace)
    damaged = findings["1 file(s) of corpus 茶 are not as committed"]
    assert damaged.level == "bad" and damaged.what.endswith(f"first: shards/茶/{shard.name} (changed)")
    unused = findings["1 file(s) that no version uses"]
    assert unused.level == "note" and unused.what.endswith(", 5 bytes, first: shards/茶/stray.parquet")
    with corpus_lock(Workspace(workspace), "茶"):  # as while it is refreshed: that is no fault
        assert [one.what for one in bad(workspace)] == [damaged.what]
        assert any("corpus '茶' is being refreshed" in what for what in findings_of(workspace))
    assert unused.fix() == "removed 1 file(s)"
    assert not stray.exists() and shard.exists()


def test_files_that_only_older_versions_lack_call_for_no_rebuilding(workspace, vocabulary_file):
    """A version that was trained on stays, so nothing would end it."""
    (shard,) = workspace.glob("shards/茶/*.parquet")
    source = workspace.parent / "more.txt"
    source.write_text("山泉水最好。井水次之。", encoding="utf-8")
    make_corpus(workspace, "茶", source, vocabulary_file)
    shard.unlink()
    older = findings_of(workspace)["1 file(s) of older versions of corpus 茶 are not as committed"]
    assert older.level == "note" and older.fix is None and not bad(workspace)


def test_a_deleted_catalog_is_restored(workspace):
    (workspace / "catalog.duckdb").unlink()
    (lost,) = bad(workspace)
    assert "catalog.duckdb is gone: jixu doctor --fix restores it" in lost.what
    assert lost.fix() == "restored 茶 version 1"
    assert not bad(workspace)


def bad(workspace):
    return [one for one in check_workspace(Workspace(workspace)) if one.level == "bad"]


def test_a_workspace_that_is_missing_or_a_file_is_reported(tmp_path):
    (one,) = check_workspace(Workspace(tmp_path / "w"))
    assert one.level == "note" and "no workspace" in one.what and not (tmp_path / "w").exists()
    (tmp_path / "file").touch()
    (one,) = check_workspace(Workspace(tmp_path / "file"))
    assert one.level == "bad" and "cannot be made (File exists)" in one.what
    room, empty = check_workspace(Workspace(tmp_path))
    assert room.level == "ok" and "GiB free on its disk" in room.what
    assert (empty.level, empty.what[:10]) == ("note", "no catalog")


def test_a_run_whose_process_was_killed_is_found_and_no_longer_called_running(workspace):
    place = Workspace(workspace)
    shared = {"corpus": "茶", "version": 1, "init": "tiny", "settings": {}, "steps": 5, "tokens": 9}
    for name, status in (("killed", "running"), ("at-work", "running"), ("done", "completed")):
        record_run(place, run=name, status=status, metrics={"step": 5}, checkpoints=[], **shared)
    with sole_training(place, "at-work"):
        (finding,) = check_runs(place)
        assert finding.what.startswith("run killed is marked as running") and finding.level == "note"
        assert "killed failed" in finding.fix()
        assert not list(check_runs(place))
        end_killed_run(place, "done")
    with read_catalog(place) as db:
        rows = db.execute("select run, status, metrics from pretraining_runs order by run").fetchall()
    assert [row[:2] for row in rows] == [("at-work", "running"), ("done", "completed"), ("killed", "failed")]
    assert json.loads(rows[2][2])["step"] == 5 and "was killed" in json.loads(rows[2][2])["error"]


def test_a_catalog_of_a_newer_jixu_is_reported(workspace):
    with write_catalog(Workspace(workspace)) as db:
        db.execute("update meta set catalog_version = 99")
    done = run_here("doctor", "--workspace", workspace)
    assert done.returncode == 1 and "written by a newer jixu (catalog 99" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_triton_check_allows_rounding():
    # in Triton's interpreter where there is no GPU
    assert triton_error("cpu" if device_names() == ("cpu",) else "cuda") < ROUNDING


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        (ROUNDING / 100, "ok", "differs from its torch reference by 1.0e-06"),
        (ROUNDING * 2, "bad", "differs from its torch reference by 2.0e-04"),
        (RuntimeError("no\nptxas"), "bad", "cannot run its kernels: RuntimeError: no ptxas; JIXU"),
    ],
    ids=["sound", "wrong", "refused"],
)
def test_a_gpu_whose_kernels_are_wrong_or_do_not_run_is_bad(monkeypatch, answer, level, words):
    def measure(device):
        if isinstance(answer, Exception):
            raise answer
        return answer

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
    ((level, what),) = verdicts(soon)
    assert level == "bad" and "the server plans no run of it" in what
    later = Scheduled(scheduled_time=soon + timedelta(hours=1))
    client.create_flow_run_from_deployment(deployment, state=later)
    ((level, _),) = verdicts(soon)
    assert level == "ok"
    client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=datetime.now(UTC)))
    assert verdicts(soon) == [
        ("bad", "a scheduled run of brew/daily is 10 minutes late: no worker starts it")
    ]
    (schedule,) = client.read_deployment_schedules(deployment)
    client.update_deployment_schedule(deployment, schedule.id, active=False)
    ((level, what),) = verdicts(soon)
    assert level == "note" and "is not active" in what


def test_a_last_run_that_failed_or_crashed_is_bad_until_one_completes(scheduled):
    client, deployment = scheduled

    def last_after(state):
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, state, force=True)
        return [what for level, what in verdicts(datetime.now(UTC)) if level == "bad"]

    for state in (Failed(message="no source given:\npass source"), Crashed(message="SIGKILL")):
        (what,) = last_after(state)
        assert what.startswith(f"the last run of brew/daily: {state.name}, {datetime.now(UTC):%Y-%m-%d}")
        assert what.endswith(f" UTC, {' '.join(state.message.split())}")
    assert last_after(Cancelled()) == [what]
    assert not last_after(Completed())
