"""Corpora by name, and training in several processes that the flow watches over."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from albert.pretraining import pretrain, read_settings
from albert.trainer_state import list_checkpoints
from data.catalog import read_catalog
from data.records import InputError
from flows.continued_pretraining import run_pretraining
from flows.settings import pretraining_plan
from flows.training_processes import train_in_processes
from tests.conftest import make_corpus, save_small_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file, tokenizer):
    root = tmp_path_factory.mktemp("workspace")
    for name, source in (("tea", "tea.jsonl"), ("general", "general.txt")):
        make_corpus(root, name, samples / source, vocabulary_file, max_seq_length=64)
    save_small_model(root / "small", tokenizer, max_position_embeddings=64)
    return root


def plan(workspace, **options):
    init = str(workspace / "small")
    return pretraining_plan("tea", str(workspace), init, steps=6, batch_tokens=512, **options)


def test_corpora_are_named_with_their_shares(workspace):
    settings = plan(workspace, mix=["general:0.25"], mask_rates=[0.3, 0.15]).settings
    assert settings.mix[0].name == "general" and settings.mix[0].share == 0.25
    assert settings.mix[0].shards and settings.mask_rates == (0.3, 0.15)
    assert [phase.shares for phase in settings.phases()] == [(0.75, 0.25)]
    then = plan(workspace, then="general:0.5").settings
    assert [(phase.until, phase.shares) for phase in then.phases()] == [(3, (1, 0)), (6, (0, 1))]


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("general", "'general': give a corpus and its share as NAME:SHARE"),
        ("nothing:0.2", "no corpus 'nothing' in this workspace"),
        ("general:1.5", "a share must lie between 0 and 1"),
    ],
)
def test_a_corpus_that_cannot_be_mixed_in_is_refused(workspace, mix, message):
    with pytest.raises(ValueError, match=message):
        plan(workspace, mix=[mix])


def test_what_does_not_change_the_weights_does_not_change_a_runs_name(workspace):
    assert plan(workspace, resume="never").run == plan(workspace, resume="auto").run
    assert plan(workspace, mix=["general:0.2"]).run != plan(workspace).run


@pytest.mark.slow
def test_two_processes_train_and_the_flow_sees_their_checkpoints(workspace):
    settings = replace(plan(workspace, mix=["general:0.25"]).settings, steps=40, checkpoint_every=20)
    seen = []
    result = train_in_processes(settings, 2, lambda state, folder, status: seen.append((state.step, status)))
    assert result.status == "completed" and result.steps == 40 and result.checkpoint.is_dir()
    assert seen[-1] == (40, "completed")
    assert read_settings(settings.run_folder)["accumulate"] == 2


@pytest.mark.slow
def test_stopped_from_outside_they_leave_a_checkpoint(workspace, tmp_path):
    settings = replace(plan(workspace).settings, run_folder=tmp_path / "run", steps=5000, checkpoint_every=10)
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_record()))
    code = (
        "import json, signal, sys; from albert.pretraining import PretrainSettings\n"
        "from flows.training_processes import train_in_processes\n"
        # what a shell starts in the background ignores Ctrl-C, and hands that on
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "settings = PretrainSettings.from_record(json.load(open(sys.argv[1])))\n"
        "print(train_in_processes(settings, 2, lambda *_: None).status)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "settings.json")], cwd=ROOT, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list_checkpoints(settings.run_folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert output.strip() == b"interrupted"


def test_processes_that_end_without_a_result_are_said(workspace, tmp_path, capfd):
    settings = replace(plan(workspace).settings, run_folder=tmp_path / "run", steps=2, accumulate=2)
    pretrain(settings)
    with pytest.raises(InputError, match="2 training processes ended early, with codes (2, 2|2, -15|-15, 2)"):
        train_in_processes(replace(settings, batch_tokens=1024), 2, lambda *_: None)
    said = capfd.readouterr().err
    assert "batch_tokens 512 -> 1024" in said and "Traceback" not in said


def test_the_catalog_is_told_what_it_did_not_hear_of(workspace, monkeypatch):
    """A process killed between its last checkpoint and the catalog's row."""
    monkeypatch.setattr("flows.continued_pretraining.begin_progress", lambda *_: lambda done: None)
    made = plan(workspace, run="untold")
    pretrain(made.settings)
    assert run_pretraining(made).resumed_from == 6
    with read_catalog(made.workspace) as db:
        told = db.execute("select status, steps from pretraining_runs where run = 'untold'").fetchall()
        rows = db.execute("select step, mlm_loss > 0 from checkpoints where run = 'untold' order by step")
        assert told == [("completed", 6)] and rows.fetchall() == [(5, True), (6, True)]
