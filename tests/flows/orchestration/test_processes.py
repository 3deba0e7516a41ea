"""Training in several processes that the flow watches, and what the catalog says of it."""

import math
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import psutil
import pyarrow.parquet as pq
import pytest
from prefect.exceptions import TerminationSignal

from albert.pretraining import pretrain, read_settings
from albert.pretraining.sentinel import Sentinel
from data.errors import ConfigError, InputError
from flows.orchestration import PretrainingOptions, run_pretraining
from flows.orchestration.plans import pretraining_plan
from flows.orchestration.processes import train_in_processes, watch
from flows.orchestration.slots import sole_training
from tests.albert.pretraining.conftest import with_options
from tests.conftest import save_small_model
from tests.corpora import ask, make_corpus


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file, tokenizer):
    root = tmp_path_factory.mktemp("workspace")
    for name, source in (("tea", "tea.jsonl"), ("general", "general.txt")):
        make_corpus(root, name, samples / source, vocabulary_file, max_seq_length=64)
    save_small_model(root / "small", tokenizer, max_position_embeddings=64)
    return root


def plan(workspace, **options):
    shared = {"corpus": "tea", "workspace": str(workspace), "init": str(workspace / "small")}
    return pretraining_plan(PretrainingOptions(**shared, **{"steps": 6, "batch_tokens": 512} | options))


@pytest.mark.slow
def test_two_processes_train_and_the_flow_sees_their_checkpoints_or_why_there_is_no_result(
    workspace, capfd, monkeypatch, tmp_path
):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/__init__.py").touch()  # a package of the user's, where the command was typed
    monkeypatch.chdir(tmp_path)
    made = plan(workspace, mix=["general:0.25"])
    settings = with_options(made.settings, steps=40, running={"checkpoint_every": 20})
    seen = []
    result = train_in_processes(settings, 2, lambda state, folder, status: seen.append((state.step, status)))
    assert result.status == "completed" and result.steps == 40 and result.checkpoint.is_dir()
    assert seen[-1] == (40, "completed")
    assert read_settings(settings.run_folder).running.accumulate == 2
    with pytest.raises(InputError, match="2 training processes ended early, with codes (2, 2|2, -15|-15, 2)"):
        train_in_processes(replace(settings, batch_tokens=1024), 2, lambda *_: None)
    errors = capfd.readouterr().err
    assert "batch_tokens 512 -> 1024" in errors and "Traceback" not in errors


@pytest.mark.slow
def test_stopped_by_a_cancel_or_by_ctrl_c_they_leave_a_checkpoint_and_resume_from_it(workspace):
    # no checkpoint but those of the stops
    only = {"checkpoint_every": 5000}
    settings = with_options(plan(workspace, run="stopped").settings, steps=5000, running=only)
    results = []
    for error in (TerminationSignal(15), KeyboardInterrupt()):

        def stop(state, folder, status, error=error):
            if status == "running":
                raise error

        results.append(train_in_processes(settings, 2, stop))
    first, second = results
    assert first.status == second.status == "interrupted" and second.resumed_from == first.steps


@pytest.mark.parametrize(
    "error", [InputError("a shard is not as committed"), KeyboardInterrupt(), TerminationSignal(15)], ids=repr
)
def test_processes_end_where_a_check_fails_or_that_are_stopped_before_they_train(workspace, error):
    with pytest.raises(type(error)) as raised:
        train_in_processes(plan(workspace, run="no").settings, 2, print, Mock(side_effect=error))
    assert raised.value is error


def test_all_end_when_the_last_one_is_lost_before_they_met(workspace):
    lost = []

    def lose():
        assert not lost, "its loss went unnoticed"
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # another's, which has ended
                if child.environ().get("RANK") == "1":  # it has begun
                    child.kill()
                    lost.append(child)

    with pytest.raises(InputError, match="ended early, with codes -15, -9"):
        train_in_processes(plan(workspace, run="lost").settings, 2, print, lose)


@pytest.fixture
def no_server(monkeypatch):
    """Train without the server that shows progress."""
    monkeypatch.setattr("flows.orchestration.training.begin_progress", lambda *_: lambda done: None)


def recorded(made, columns="status, steps, metrics ->> 'error'"):
    """What the catalog has of a run."""
    (row,) = ask(made.workspace.root, f"select {columns} from pretraining_runs where run = ?", made.run)
    return row


def changed(made, **changes):
    return replace(made, settings=with_options(made.settings, **changes))


def test_the_catalog_says_that_a_training_diverged(workspace, monkeypatch, no_server):
    """It still does, with the first settings, when the run is refused with other settings. Before, and before
    its first checkpoint, it runs: its versions are not removed.
    """
    made = plan(workspace, run="apart")
    check, seen = Sentinel.check, []

    def spoilt(sentinel, losses, norm, **known):
        seen.append(recorded(made)[:2])
        return check(sentinel, losses, norm if len(seen) < 4 else math.nan, **known)

    monkeypatch.setattr(Sentinel, "check", spoilt)
    with pytest.raises(ConfigError, match="diverged for the 4th time"):
        run_pretraining(made)
    status, steps, reason = recorded(made)
    assert seen[0] == ("running", 0)
    assert (status, steps) == ("diverged", 3) and "4th time" in reason and "checkpoint-3 is sound" in reason
    with pytest.raises(ConfigError, match="begun with other settings"):
        run_pretraining(changed(made, batch_tokens=256))
    assert recorded(made) == (status, steps, reason)
    assert recorded(made, "settings ->> 'batch_tokens'") == ("512",)


def test_the_catalog_says_that_a_training_failed_until_it_resumes(workspace, monkeypatch, no_server):
    made = changed(plan(workspace, run="unlucky"), evaluation={"every": 2})
    statuses = []

    def fill(done):
        statuses.append(recorded(made)[0])
        if len(statuses) == 2:
            Path("/dev/full").write_text("no room for this")

    if not Path("/dev/full").exists():
        pytest.skip("Linux has a device that is always full")
    monkeypatch.setattr("flows.orchestration.training.begin_progress", lambda *_: fill)
    with pytest.raises(InputError, match="is full"):
        run_pretraining(made)
    status, steps, reason = recorded(made)
    assert (status, steps) == ("failed", 4) and "is full" in reason
    assert run_pretraining(made).resumed_from == 4
    assert statuses == ["running", "running", "running", "completed"]
    assert recorded(made) == ("completed", 6, None)


def test_a_run_is_trained_by_one_process_at_a_time_and_the_catalog_gets_a_checkpoint_that_it_missed(
    workspace, no_server
):
    made = plan(workspace, run="held")
    asked = "run held is being trained by another process: wait for it to end"
    with sole_training(made.workspace, made.run), pytest.raises(InputError, match=asked):
        run_pretraining(made)
    assert not ask(workspace, "from pretraining_runs where run = 'held'")
    # the process was killed between its last checkpoint and the catalog's row
    made = plan(workspace, run="missed", evaluation={"every": 4}, running={"checkpoint_every": 5})
    pretrain(made.settings)
    assert run_pretraining(made).resumed_from == 6
    assert recorded(made, "status, steps") == ("completed", 6)
    rows = ask(workspace, "select step, mlm_loss > 0 from checkpoints where run = 'missed' order by step")
    assert rows == [(5, None), (6, True)]  # step 5 was not evaluated


@pytest.mark.parametrize("number", [0, 1], ids=["its corpus's", "of one mixed in"])
def test_a_shard_that_is_not_as_committed_ends_a_training(workspace, tmp_path, no_server, number):
    shutil.copytree(workspace, tmp_path / "w")
    made = plan(tmp_path / "w", run="spoilt", steps=500, mix=["general:0.25"])
    shard = (*made.settings.shards, *made.settings.mix[0].shards)[number]
    pq.write_table(pq.read_table(shard), shard, compression="gzip")  # what it holds is the same
    with pytest.raises(InputError, match="is not as it was committed: run jixu doctor --fix"):
        run_pretraining(made)
    status, steps, reason = recorded(made)
    assert status == "failed" and steps < 500 and shard.name in reason


def test_a_run_is_reported_once_its_processes_have_started_with_the_checkpoint_resumed(workspace, tmp_path):
    old, new = tmp_path / "run", tmp_path / "new"
    pretrain(replace(plan(workspace).settings, run_folder=old, steps=2))
    new.mkdir()
    for folder, begins, expected in (
        (old, int, []),
        (old, (old / "settings.json").touch, [(2, "running")]),
        (new, (new / "settings.json").touch, [(0, "running")]),
    ):
        told = []
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
            turns = (turn() for turn in chain([begins, cat.stdin.close], repeat(int)))
            watch([cat], folder, lambda state, _, how, to=told: to.append((state.step, how)), turns.__next__)
        assert told == expected


@pytest.mark.slow
def test_processes_that_are_killed_leave_a_run_that_failed(workspace, no_server):
    made = changed(plan(workspace, run="killed"), steps=5000, running={"checkpoint_every": 5})

    def kill(done):
        everyone = list(psutil.process_iter(["ppid", "cmdline"]))  # a process that has ended has no cmdline
        for one in everyone:
            if one.info["ppid"] == os.getpid() and "albert.pretraining" in (one.info["cmdline"] or ()):
                one.kill()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError, match="codes -9, -9"):
        patch.setattr("flows.orchestration.training.begin_progress", lambda *_: kill)
        run_pretraining(made, processes=2)
    status, _, reason = recorded(made)
    assert status == "failed" and "was killed" in reason
