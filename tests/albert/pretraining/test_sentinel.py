"""The sentinel tells noise and harder tasks from divergence, after which a run is rolled back."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from albert.model import PretrainingObjective
from albert.pretraining import list_checkpoints, pretrain, read_failure, run
from albert.pretraining.sentinel import Sentinel
from albert.pretraining.trainer import REVIEW_INTERVAL, Trainer
from data.errors import ConfigError
from tests.albert.pretraining.conftest import assert_same, weights, with_options


def test_the_sentinel_tells_noise_and_a_task_that_grows_harder_from_divergence():
    rng = np.random.default_rng(0)
    sound, spoilt = Sentinel({}), Sentinel({})
    losses = 3 + 5 * np.exp(-np.arange(300) / 50) + rng.normal(0, 0.4, 300)
    assert not any(sound.check({0: loss, 1: loss + 2}, 1.0) for loss in losses)
    assert not any(spoilt.check({0: loss}, 1.0) for loss in losses)
    assert any(spoilt.check({0: 9.0}, 1.0) for _ in range(10))
    at_once = Sentinel({})
    wrong = [at_once.check({0: loss}, 1.0) for loss in [3.0] + [8.0] * 10]
    assert not any(wrong[:10]) and "rose from 3.00" in wrong[10]  # not yet in the first ten, as some recover
    assert "not finite" in Sentinel({}).check({0: 2.0}, float("inf"))
    # two nats more in 100 steps, as the mask rate rises every fourth of them; then one at once
    unaware, aware = Sentinel({}), Sentinel({})
    losses = [3.0] * 20 + [3 + step / 50 for step in range(100)]
    assert any(unaware.check({0: loss}, 1.0) for loss in losses)
    assert not any(aware.check({0: loss}, 1.0, is_harder=n % 4 == 0) for n, loss in enumerate(losses))
    assert any(aware.check({0: 9.0}, 1.0) for _ in range(5))


def test_a_harder_part_of_the_text_is_told_from_a_worse_model():
    """Training losses of two sources in turn, 2 nats apart; the model is the same, then it is spoilt."""
    asked = []

    def is_worse():
        asked.append(len(losses))
        return bool(spoilt)

    sentinel, losses, spoilt = Sentinel({}, is_worse), [], []
    for step in range(600):
        losses.append(3.4 if step // 100 % 2 == 0 else 5.4)
        assert sentinel.check({0: losses[-1]}, 1.0) is None
    assert len(asked) == 3  # once where the harder source begins
    spoilt.append(True)
    assert any("the MLM loss rose" in (sentinel.check({0: 7.0}, 1.0) or "") for _ in range(10))


class ChangedLosses:
    """Adds to losses of training batches and to the held-out interval's end; `held_out`: to that loss too."""

    def __init__(self, monkeypatch, calls, by=float("nan"), *, held_out=False):
        self.number, self.calls = 0, set(calls)
        evaluate = run.evaluate

        def changed_too(*args, **options):
            figures, sums = evaluate(*args, **options)
            names = ["held_out_mlm_loss"] * held_out + ["held_out_mlm_loss_high"]
            rise = by if self.number in self.calls else 0.0
            return figures | {name: figures[name] + rise for name in names}, sums

        monkeypatch.setattr(run, "evaluate", changed_too)
        forward = PretrainingObjective.forward

        def changed(objective, batch):
            losses = forward(objective, batch)
            if torch.is_grad_enabled():
                self.number += 1
                if self.number in self.calls:
                    return replace(losses, mlm_loss=losses.mlm_loss + by)
            return losses

        monkeypatch.setattr(PretrainingObjective, "forward", changed)


def test_a_loss_of_nan_rolls_training_back(settings, monkeypatch, capsys):
    ChangedLosses(monkeypatch, [11])
    saved = []
    result = pretrain(settings, lambda state, _, status: saved.append((state.step, state.rollbacks)))
    # that it was rolled back is saved at once
    assert saved == [(0, 0), (4, 0), (8, 0), (8, 1), (12, 1), (16, 1)]
    assert result.status == "completed" and result.steps == 16
    (event,) = result.events
    assert event.kind == "rollback" and event.step == 11
    assert "Back to step 8 at half the learning rate" in event.text in capsys.readouterr().err
    rates = {r["step"]: r["learning_rate"] for r in result.history if "learning_rate" in r}
    assert rates[9] / rates[8] == pytest.approx(0.5 * 8 / 9, rel=0.2)
    assert all(torch.isfinite(w).all() for w in weights(result.checkpoint).values())
    # and so they are after a crash
    assert pretrain(settings).events == result.events


def test_before_any_checkpoint_it_rolls_back_to_the_start_and_prepares_nothing(settings, monkeypatch, capsys):
    """Batches are padded for the graphs of the trainer, which has others afterwards."""
    ChangedLosses(monkeypatch, [2])
    is_rolling, prepared = threading.Event(), []
    prepare, roll_back = Trainer.prepare, Trainer.roll_back

    def slowly(self, data):
        time.sleep(0.2 if len(prepared) < 5 else 0)  # the trainer waits for it
        prepared.append(is_rolling.is_set())
        return prepare(self, data)

    def rolled(self, wrong):
        is_rolling.set()
        time.sleep(0.3)
        notice = roll_back(self, wrong)
        is_rolling.clear()
        return notice

    monkeypatch.setattr(Trainer, "prepare", slowly)
    monkeypatch.setattr(Trainer, "roll_back", rolled)
    saved = []

    def crash_once(state, folder, _):
        saved.append((folder.name, state.rollbacks))
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, crash_once)
    result = pretrain(settings, crash_once)
    assert saved[:4] == [("checkpoint-0", 0), *2 * [("checkpoint-0", 1)], ("checkpoint-4", 1)]
    assert "resuming at step 0, at 0.5 of the learning rate" in capsys.readouterr().err
    (event,) = result.events
    assert "Back to step 0" in event.text and result.steps == 16
    assert [r["step"] for r in result.history if "mlm_loss" in r or not r["step"]] == list(range(17))
    assert prepared and not any(prepared)


def test_training_goes_on_where_the_text_is_harder_and_the_model_is_no_worse(settings, monkeypatch, capsys):
    ChangedLosses(monkeypatch, range(11, 17), by=4.0)
    result = pretrain(settings)
    assert result.status == "completed" and result.steps == 16 and not result.events
    assert "no held-out loss: the text is harder here" in capsys.readouterr().err


def test_a_checkpoint_written_during_divergence_is_skipped_and_may_still_be_the_best(settings, monkeypatch):
    """The best at step 4 was removed when step 12 was better, to which training does not go back."""
    # ten steps of a running mean: it has risen by 0.8 at the checkpoint after step 12, by 1.1 at step 13
    ChangedLosses(monkeypatch, [11, 12, 13], by=4.0, held_out=True)
    evaluate, losses = run.evaluate, iter([9.0, 5.0, 6.0, 4.0, 9.0, 5.5, 7.0])

    def given(*args, **options):
        figures, sums = evaluate(*args, **options)
        return figures | {"held_out_mlm_loss": next(losses)}, sums

    monkeypatch.setattr(run, "evaluate", given)
    result = pretrain(settings)
    (event,) = result.events
    assert event.step == 13 and "Back to step 8" in event.text
    assert result.status == "completed" and result.steps == 16
    assert result.best_checkpoint == settings.run_folder / "checkpoint-12"
    assert result.best_checkpoint.is_dir()


def test_reviewing_figures_less_often_changes_nothing(settings, whole, monkeypatch):
    """As on a GPU, where every look waits."""
    monkeypatch.setitem(REVIEW_INTERVAL, "cpu", 10)
    rarely = with_options(settings, running={"log_every": 3}, evaluation={"every": 5})
    rarely = replace(rarely, run_folder=settings.run_folder.parent / "b")
    result = pretrain(rarely)
    assert_same(whole.checkpoint, result.checkpoint)
    losses = {r["step"]: r["mlm_loss"] for r in whole.history if "mlm_loss" in r}
    logged = [r for r in result.history if "mlm_loss" in r]
    assert [r["step"] for r in logged] == [3, 6, 9, 12, 15, 16]
    assert all(r["tokens_per_second"] < 1e7 for r in logged)
    assert logged[-1]["mlm_loss"] == losses[16] and result.evaluations()[-1]["step"] == 16
    ChangedLosses(monkeypatch, [8])
    (event,) = pretrain(replace(rarely, run_folder=settings.run_folder.parent / "c")).events
    assert event.step == 9 and "Back to step 5" in event.text


def test_training_that_keeps_diverging_ends_with_a_sound_checkpoint(settings):
    """A rate that no model bears, without a bound on the gradient."""
    wild = {"learning_rate": 9.0, "optimizer": {"clip_norm": 1e6}, "schedule": {"warmup_share": 0.0}}
    often = {"evaluation": {"every": 20}, "running": {"checkpoint_every": 5}}
    with pytest.raises(ConfigError, match="diverged for the 4th time.*lower --learning-rate"):
        pretrain(with_options(settings, steps=400, **wild, **often))
    failure = read_failure(settings.run_folder)
    assert failure.status == "diverged" and "diverged for the 4th time" in failure.reason
    for folder in list_checkpoints(settings.run_folder):
        assert all(torch.isfinite(w).all() for w in weights(folder).values())
