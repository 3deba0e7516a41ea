"""What a checkpoint keeps beside the model: the optimiser's state, the place in the data, the second head."""

import os
import shutil
from contextlib import suppress
from itertools import count
from typing import get_args
from unittest.mock import Mock, patch

import pytest
import torch

from albert.batching import DataState
from albert.batching.stream import Cursor
from albert.learning_rate import OptimizerName
from albert.model import PretrainingObjective
from albert.optim import make_optimizer
from albert.pretraining import Event, TrainerState, is_whole, list_checkpoints, read_trainer_state, step_of
from albert.pretraining.sentinel import Trend
from albert.pretraining.state import (
    Best,
    Figures,
    load_tensors,
    remove_old_checkpoints,
    remove_unfinished,
    save_checkpoint,
)
from tests.conftest import small_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def objective_of(tokenizer):
    return PretrainingObjective(small_model(tokenizer), span_boundary=True).to(DEVICE)


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_optimiser_place_and_second_head_come_back_as_they_were(tmp_path, tokenizer, name):
    objective = objective_of(tokenizer)
    optimizer = make_optimizer(name, objective, 1e-3, 0.01)
    step(objective, optimizer)
    place = DataState(9, (Cursor(1, 2, 3), Cursor()), (500, 90))
    history, events = [{"step": 0, "mlm_loss": 3.5}], [Event(2, "rollback", "why")]
    best, trends = Best(4, 2.5), {1: Trend(3, 2, 9)}
    state = TrainerState(7, 90, place, 1.5, history, Figures(9.5, 2), events, 0.5, 1, best, 2, trends, 4)
    folder = save_checkpoint(tmp_path, objective, optimizer, state, None)
    same = objective_of(tokenizer)
    restored = make_optimizer(name, same, 1e-3, 0.01)
    load_tensors(folder, same, restored)
    assert read_trainer_state(folder) == state
    # on the same device too: a fused step takes parameters and moments on one
    for one, other in ((objective.boundary, same.boundary), (optimizer, restored)):
        torch.testing.assert_close(dict(other.state_dict()), dict(one.state_dict()), rtol=0, atol=0)
    step(same, restored)


@pytest.fixture
def saved(tmp_path, tokenizer):
    """A checkpoint written over one of the same step, and over what a killed writer left."""
    objective = objective_of(tokenizer)
    optimizer = make_optimizer("adamw", objective, 1e-3, 0.01)
    save_checkpoint(tmp_path, objective, optimizer, TrainerState(step=7, tokens=1), None)
    (tmp_path / "writing-7").mkdir()
    (tmp_path / "writing-7" / "half a file").write_text("left")
    return save_checkpoint(tmp_path, objective, optimizer, TrainerState(step=7, tokens=2), None)


def test_a_checkpoint_replaces_an_older_one_whole_wherever_the_process_is_killed(saved, tokenizer):
    assert is_whole(saved) and read_trainer_state(saved).tokens == 2
    assert not (saved / "half a file").exists() and [p.name for p in saved.parent.iterdir()] == [saved.name]
    objective = objective_of(tokenizer)
    optimizer = make_optimizer("adamw", objective, 1e-3, 0.01)

    def killed_at(number, work, calls):
        def call(place, *others, **options):
            calls.append(others[-1].name if others else place.name)
            if len(calls) > number:
                if work is rmtree:  # a part of it is gone
                    (place / "manifest.json").unlink()
                raise KeyboardInterrupt
            work(place, *others, **options)

        return call

    for number in count():
        calls, rmtree, replace = [], shutil.rmtree, os.replace
        with (
            patch("shutil.rmtree", killed_at(number, rmtree, calls)),
            patch("os.replace", killed_at(number, replace, calls)),
            patch("albert.pretraining.state.sync") as sync,
            suppress(KeyboardInterrupt),
        ):
            save_checkpoint(saved.parent, objective, optimizer, TrainerState(step=7), None)
            break
        remove_unfinished(saved.parent)
        assert is_whole(saved) and [p.name for p in saved.parent.iterdir()] == [saved.name], number
    assert is_whole(saved) and {p.name for p in saved.iterdir()} - {*calls} == {"trainer_state.safetensors"}
    assert [call.args[0].name for call in sync.mock_calls] == ["trainer_state.safetensors", saved.parent.name]


@pytest.mark.parametrize("damaged", ["trainer_state.json", "trainer_state.safetensors", "manifest.json"])
def test_a_checkpoint_with_a_damaged_or_missing_file_is_not_whole(saved, damaged):
    (saved / damaged).write_text("{")
    assert not is_whole(saved)
    (saved / damaged).unlink()
    assert not is_whole(saved)


def test_the_newest_up_to_a_step_and_the_best_are_kept(tmp_path, monkeypatch):
    for step in (4, 8, 12, 16, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for other in ("writing-20", "checkpoint-of-mine"):
        (tmp_path / other).mkdir()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        remove_old_checkpoints(tmp_path, 16, keep=2, best_step=4)
    # no one takes what a killed process was removing for a checkpoint
    assert [step_of(folder) for folder in list_checkpoints(tmp_path)] == [16, 12, 4]
    remove_unfinished(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["checkpoint-12", "checkpoint-16", "checkpoint-4", "checkpoint-of-mine"]
