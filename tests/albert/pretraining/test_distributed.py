"""Training in several processes on the CPU: the losses of one, lost processes, another number of them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import torch

from albert.pretraining import Corpus, list_checkpoints, pretrain, settled, step_of, write_settings
from albert.runtime import Process
from data.errors import ConfigError
from tests import ROOT
from tests.albert.pretraining.conftest import with_options
from tests.conftest import change_json, save_small_model
from tests.flows.serving import wait_until


@pytest.fixture
def settings(settings, tmp_path, corpora, tokenizer):
    shape = {"hidden_dropout_prob": 0.1, "max_position_embeddings": 64}
    init = str(save_small_model(tmp_path / "small", tokenizer, **shape))
    # without sentence order: some batches leave that head without a gradient
    mix = (Corpus(name="general", shards=corpora["general"], share=0.4, held_out_share=0.1),)
    given = {"running": {"accumulate": 4, "precision": "fp32"}, "evaluation": {"every": 5}}
    ten_steps = replace(settings, steps=10, batch_tokens=1024, tokenizer_folder=None)
    return with_options(ten_steps, init=init, mix=mix, **given)


def launch(settings, processes, *options):
    """torchrun; what it says goes to a file beside the run."""
    path = settings.run_folder.parent / "settings.json"
    write_settings(settings, path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(processes), *options, "-m", "albert.pretraining", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (settings.run_folder.parent / "said.txt").open("w") as said:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)


def metrics(settings, name="mlm_loss"):
    """A figure by the step it was recorded at."""
    lines = (settings.run_folder / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record[name] for record in map(json.loads, lines) if name in record}


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_and_are_restarted_once_if_one_is_lost(settings, tmp_path):
    """By torchrun; afterwards one process resumes from the last checkpoint."""
    by_time = {"checkpoint_minutes": 1e-9, "checkpoint_every": 4000, "keep_checkpoints": 20}
    settings = with_options(settings, steps=4000, running=by_time, resume="never")
    launched = launch(settings, 2, "--max-restarts", "1")
    first = kill_one(launched, settings, after=0)
    psutil.wait_procs(first, 120)  # the other may be writing one more
    # started again, they resume in spite of resume="never"
    second = kill_one(launched, settings, after=max(newest(settings), 10))
    assert launched.wait(90) != 0
    assert not any(worker.is_running() for worker in (*first, *second))
    # the second process follows the first one's clock
    assert len(list_checkpoints(settings.run_folder)) >= 10
    reached = newest(settings)
    change_json(settings.run_folder / "settings.json", steps=reached + 5)
    rarely = with_options(settings, steps=reached + 5, resume="auto", running={"log_every": 10})
    result = pretrain(rarely)
    assert result.resumed_from == reached
    assert any("2 process(es), now it has 1: a step stays 4 parts" in notice for notice in result.notices)
    assert [step for step in metrics(settings) if step <= reached] == [*range(1, reached + 1)]
    assert [*metrics(settings)][-1] == reached + 5
    alone = with_options(settings, run_folder=tmp_path / "alone" / "run", running={"checkpoint_minutes": 1e4})
    eleven_steps = iter(range(11))
    with pytest.raises(StopIteration):
        pretrain(alone, check=lambda: next(eleven_steps))
    for name, steps in (("mlm_loss", [*range(1, 12)]), ("held_out_masked_tokens", [0, 5, 10])):
        together, expected = metrics(settings, name), metrics(alone, name)
        assert [*expected] == steps
        assert {step: together[step] for step in steps} == pytest.approx(expected, abs=1e-5)


def newest(settings):
    """The step of the newest checkpoint, 0 without one."""
    return max(map(step_of, list_checkpoints(settings.run_folder)), default=0)


def test_more_processes_than_parts_of_a_step_are_refused(settings):
    with pytest.raises(ConfigError, match="4 parts cannot be .* to 8 processes.*--running.accumulate 8"):
        settled(settings, Process(0, 8))
    assert settled(with_options(settings, running={"accumulate": 3}), Process(0, 2))
    usual = with_options(settings, batch_tokens=None, running={"accumulate": None})
    for kind, tokens in (("cpu", 4096), ("cuda", 32768)):
        fixed = settled(usual, Process(0, 8, torch.device(kind)))
        assert (fixed.batch_tokens, fixed.running.accumulate) == (tokens, 8)


def kill_one(launched, settings, after):
    """SIGKILL to one of the two workers, once there is a checkpoint after a step; returns both."""
    wait_until(lambda: newest(settings) > after)
    children = psutil.Process(launched.pid).children(recursive=True)
    workers = [child for child in children if "albert.pretraining" in child.cmdline()]
    assert len(workers) == 2
    workers[1].send_signal(signal.SIGKILL)
    return workers
