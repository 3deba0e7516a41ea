"""One step of training: what its gradient is of, its dropout, its clipping, which evaluation is best."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest
import torch
import torch.distributed as dist

from albert.batching import StepData, pack_batch
from albert.learning_rate import learning_rate_at
from albert.model import PretrainingObjective
from albert.optim import Lamb
from albert.pretraining import Corpus, check_start, list_checkpoints, pretrain
from albert.pretraining.sentinel import Trend
from albert.pretraining.state import Best
from albert.pretraining.trainer import REVIEW_INTERVAL, Trainer
from albert.runtime import Process
from data.files import sha256
from tests.albert.pretraining.conftest import steps_of, trainer_of, with_options


@pytest.fixture
def settings(settings):
    return with_options(settings, steps=3, running={"precision": "fp32"})


def take(trainer, data):
    trainer.step(trainer.prepare(data))


@pytest.mark.parametrize("corpus", ["tea", "spans"])
def test_a_step_in_parts_has_the_gradient_of_all_of_it(settings, corpora, corpus):
    """The mean over all masked tokens, and all pairs, however unlike the parts are; of a second head too."""
    whole, parts = (trainer_of(with_options(settings, shards=corpora[corpus])) for _ in range(2))
    stream = whole.streams[""]
    instances = stream._load(stream.row_groups)
    rows = [np.arange(2), np.arange(2, 20)]

    def batches(chosen):
        info = stream.info
        return [pack_batch(instances, r, info.vocabulary, info.rule, seed=0, epoch=0) for r in chosen]

    after, about = whole.state.data, (100, True)
    take(whole, StepData(batches([np.concatenate(rows)]), [0], after, *about))
    take(parts, StepData(batches(rows), [0, 0], after, *about))
    assert parts.state.tokens == whole.state.tokens > 0
    gradients = ([p.grad for p in one.objective.parameters()] for one in (parts, whole))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


def test_the_rate_of_a_step_is_the_schedules_at_the_steps_before_it(settings):
    schedule = {"warmup_share": 0.25, "name": "polynomial"}
    trainer = trainer_of(with_options(settings, steps=8, schedule=schedule))
    trainer.state.rate_scale = 0.5
    source, tokens = steps_of(trainer), 0
    for done in range(8):
        take(trainer, data := next(source))
        tokens += sum(batch.tokens for batch in data.batches)
        assert (trainer.state.data, trainer.state.tokens) == (data.after, tokens)
        expected = 1e-3 * 0.5 * learning_rate_at("polynomial", done, 8, 2)
        assert {group["lr"] for group in trainer.optimizer.param_groups} == {expected}
    records, wrong = trainer.review()
    assert wrong is None and [record.step for record in records] == list(range(1, 9))
    assert records[-1].learning_rate == expected
    assert trainer.review() == ([], None)


def test_a_steps_gradient_is_its_own_and_all_of_it_is_clipped(settings, corpora):
    """Of the model and of a second head; at a rate of 0 the same step comes twice."""
    settings = with_options(settings, shards=corpora["spans"], optimizer={"clip_norm": 1e-3})
    trainer = Trainer(settings, check_start(settings), 0.0, Process())
    data, norms = next(steps_of(trainer)), []
    for _ in range(2):
        take(trainer, data)
        gradients = [p.grad.norm() for p in trainer.objective.parameters() if p.grad is not None]
        assert torch.stack(gradients).norm().item() == pytest.approx(1e-3, rel=1e-2)
        norms.append(trainer.review()[0][0].gradient_norm)
    assert norms[0] == norms[1] > 0.1


def test_an_overflow_in_fp16_costs_a_step_and_half_the_scale(settings, tmp_path):
    settings = with_options(settings, running={"precision": "fp16"}, run_folder=tmp_path / "run")
    trainer = trainer_of(settings)
    source = steps_of(trainer)

    def took() -> bool:
        before = [p.detach().clone() for p in trainer.objective.parameters()]
        take(trainer, next(source))
        after = trainer.objective.parameters()
        return any(not torch.equal(p, q) for p, q in zip(before, after, strict=True))

    assert took() and trainer.scaler.get_scale() == 2**12
    trainer.scaler.update(2.0**60)
    assert not took() and trainer.scaler.get_scale() == 2**59
    records, wrong = trainer.review()
    assert wrong is None and [np.isfinite(r.gradient_norm) for r in records] == [True, False]
    trainer.checkpoint()
    again = trainer_of(settings)
    again.resume()
    assert again.scaler.get_scale() == 2**59
    take(again, next(steps_of(again)))
    # at so small a scale only spoilt weights overflow
    trainer.scaler.update(0.5)
    pending(trainer, 3, 2.0, float("inf"))
    assert trainer.review()[1] == "the gradient is not finite"


def test_options_reach_the_trainer(settings):
    plain = trainer_of(settings)
    with plain.precision():
        assert not torch.is_autocast_enabled("cpu")
    running = {"precision": "bf16", "activation_checkpointing": True}
    optimizer = {"name": "lamb", "weight_decay": 0.03}
    trainer = trainer_of(with_options(settings, optimizer=optimizer, running=running))
    with trainer.precision():
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16 and torch.is_autocast_enabled("cpu")
    assert isinstance(trainer.optimizer, Lamb) and isinstance(plain.optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.03, 0.0]
    assert trainer.model.encoder.activation_checkpointing and trainer.objective.training


def test_each_corpus_has_figures_and_a_trend_of_its_own(settings):
    given = {"shards": settings.shards, "share": 0.3, "held_out_share": 0.1}
    mix = tuple(Corpus(name=name, **given) for name in ("again", "idle"))
    trainer = trainer_of(replace(settings, mix=mix))
    (first, *_), (second, *_) = (next(steps_of(trainer)).batches for _ in range(2))
    take(trainer, StepData([first, second], [0, 1], trainer.state.data, 9, True))
    ((record,), _) = trainer.review()
    counted = {corpus: figures.mlm_count for corpus, figures in record.corpora.items()}
    assert counted == {0: len(first.masked_labels), 1: len(second.masked_labels)}
    assert set(trainer.state.trends) == {0, 1}


def test_every_batch_has_dropout_of_its_own_and_every_seed_weights(settings, tmp_path, monkeypatch):
    seeds, forward = [], PretrainingObjective.forward

    def noting(objective, batch):
        if torch.is_grad_enabled():
            seeds.append(torch.initial_seed())
        return forward(objective, batch)

    monkeypatch.setattr(PretrainingObjective, "forward", noting)
    settings = with_options(settings, running={"accumulate": 2})
    first, other = (pretrain(replace(settings, seed=n, run_folder=tmp_path / f"{n}")) for n in (0, 1))
    assert len(set(seeds)) == len(seeds) == 12
    assert sha256(first.checkpoint / "model.safetensors") != sha256(other.checkpoint / "model.safetensors")


def test_an_operation_that_varies_is_refused_while_a_run_is_deterministic(settings, tmp_path, monkeypatch):
    # without it torch refuses what cuBLAS computes, too
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is as before in the end
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    pretrain(replace(settings, steps=1, run_folder=tmp_path / "free"))
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    seen = []
    asked = with_options(settings, running={"deterministic": True}, steps=1, run_folder=tmp_path / "run")
    pretrain(asked, on_checkpoint=lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    assert seen == [True, True] and not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_the_best_has_the_lowest_loss_that_forgot_no_more_than_it_may(settings):
    trainer = trainer_of(with_options(settings, evaluation={"max_forgetting": 0.5}))
    trainer.state.history = [{"step": 0, "held_out_mlm_loss": 4.0, "held_out_mlm_loss@general": 2.0}]
    judged = []
    for own, general in ((3.0, 2.5), (2.5, 2.51), (2.9, 2.4), (2.9, 2.4), (3.5, 1.0)):
        trainer.state.step += 1
        best = trainer.judge({"held_out_mlm_loss": own, "held_out_mlm_loss@general": general})
        judged.append((best, trainer.state.stale_evaluations))
    assert judged == [(True, 0), (False, 1), (True, 0), (False, 1), (False, 2)]
    assert trainer.state.best == Best(3, 2.9)


def test_a_rollback_takes_the_newest_calm_whole_checkpoint_else_the_oldest_not_ruined(settings, tmp_path):
    trainer = trainer_of(with_options(settings, run_folder=tmp_path / "run", running={"keep_checkpoints": 9}))
    take(trainer, next(steps_of(trainer)))
    rising, calm = ({0: Trend(mean, 3.0, 20)} for mean in (3.6, 3.4))
    found = []
    for step, trends in enumerate((rising, rising, calm, calm, rising), 1):
        trainer.state.step, trainer.state.trends = step, trends
        losses = enumerate([3.0, 3.5 if step == 1 else 3.4])
        trainer.state.history = [{"step": n, "held_out_mlm_loss": loss} for n, loss in losses]
        trainer.checkpoint()
        found.append(trainer._last_good())
    assert [one and one.name[-1] for one in found] == [None, "2", "3", "4", "4"]
    (tmp_path / "run" / "checkpoint-4" / "manifest.json").unlink()
    for wrong in ("first", "second"):
        trainer.state.step, trainer.state.data = 7, replace(trainer.state.data, batches=9)
        assert trainer.roll_back(wrong).startswith(f"step 7: {wrong}. Back to step 3")
    state = trainer.state
    assert (state.step, state.rollbacks, state.rate_scale, state.data.skipped) == (3, 2, 0.25, 6)
    assert [event.text[8:14] for event in state.events] == ["first.", "second"]
    # it begins to watch anew
    assert state.trends == {}


def pending(trainer, step, loss, norm):
    """What a step of 30 masked tokens leaves to be looked at."""
    sums = torch.tensor([[30 * loss, 5.0, 30.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    trainer._pending.append((step, 100, 1e-3, sums, torch.tensor(norm)))


def test_of_several_steps_those_before_the_first_bad_one_count(settings):
    trainer = trainer_of(settings)
    for step, norm in ((1, 1.0), (2, float("inf")), (3, 1.0)):
        pending(trainer, step, 2.0, norm)
    done, wrong = trainer.review()
    assert [record.step for record in done] == [1] and wrong == "the gradient is not finite"


@pytest.mark.parametrize(
    ("rates", "step", "may_rise"),
    [((0.15, 0.3), 2, False), ((0.15, 0.3), 3, True), ((0.3, 0.15), 3, False), (None, 3, False)],
)
def test_losses_may_rise_in_a_step_in_which_more_is_masked_than_before(settings, rates, step, may_rise):
    """Rates have two digits: of 40 steps the third is the first to have another one than that before it."""
    trainer = trainer_of(with_options(settings, objective={"mask_rates": rates}, steps=40))
    trainer.state.trends = {0: Trend(3.0, 1.9, 20)}
    pending(trainer, step, 3.1, 1.0)
    assert (trainer.review()[1] is None) == may_rise


@pytest.fixture
def group():
    """A group of one process, for which gradients are exchanged all the same."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_one_process_asks_for_all_do_at_the_next_review(settings, group, tmp_path, monkeypatch, capfd):
    """As on GPUs, which are reviewed every ten steps: none waits for the others in between."""
    monkeypatch.setattr("albert.pretraining.run.join", lambda: nullcontext(Process(0, 2)))
    monkeypatch.setitem(REVIEW_INTERVAL, "cpu", 4)
    rarely = {"log_every": 100, "accumulate": 2, "keep_checkpoints": 100}
    settings = with_options(settings, running=rarely, steps=9, run_folder=tmp_path / "stopped")
    steps = count(1)

    def stop_in_the_third():
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = pretrain(with_options(settings, evaluation={"every": 9}), check=stop_in_the_third)
    assert (result.status, result.steps) == ("interrupted", 4)
    assert "stopping after this step, with a checkpoint" in capfd.readouterr().err
    last = with_options(settings, steps=1, run_folder=tmp_path / "last")
    assert pretrain(last, check=lambda: os.kill(os.getpid(), signal.SIGINT)).status == "completed"
    often = {"running": {"checkpoint_minutes": 1e-9}, "run_folder": tmp_path / "overdue"}
    pretrain(with_options(settings, evaluation={"every": 9}, **often))
    found = [path.name for path in list_checkpoints(tmp_path / "overdue")]
    assert found == [f"checkpoint-{n}" for n in (9, 8, 4)]


def test_gradients_are_exchanged_once_a_step_however_many_parts_it_has(settings, group):
    settings = with_options(settings, running={"accumulate": 6}, batch_tokens=128 * 6)
    trainer = trainer_of(settings, Process(0, 2))
    exchanged = []

    def note(state, bucket):
        exchanged.append(bucket.is_last())
        summed = torch.futures.Future()
        summed.set_result(bucket.buffer())
        return summed

    trainer.module.register_comm_hook(None, note)
    for step in islice(steps_of(trainer), 4):
        assert len(step.batches) == 3
        take(trainer, step)
    assert exchanged.count(True) == 4


def test_gradients_exchanged_in_bf16_are_rounded_and_an_untrained_head_has_none(settings, group):
    data = next(steps_of(trainer_of(settings)))
    data = data._replace(batches=[replace(b, sop_labels=None) for b in data.batches], is_ordered=False)
    asked = (with_options(settings, running={"compress_gradients": one}) for one in (0, 1))
    exact, rounded = (trainer_of(one, Process(0, 2)) for one in asked)
    for trainer in (exact, rounded):
        take(trainer, data)
    differ = 0
    for (name, p), q in zip(exact.model.named_parameters(), rounded.model.parameters(), strict=True):
        if name.startswith(("sop.", "encoder.pooler.")):
            assert p.grad is None and q.grad is None
            continue
        assert (p.grad - q.grad).norm() <= 2**-8 * p.grad.norm() + 1e-9, name
        differ += not torch.equal(p.grad, q.grad)
    assert differ


def test_processes_that_share_a_model_start_from_the_corpus_like_one_alone(settings, group, tmp_path):
    settings = with_options(settings, init="bert-tiny", init_weights="corpus", run_folder=tmp_path / "run")
    models = []
    for process in (Process(), Process(0, 2)):
        trainer = trainer_of(settings, process)
        assert not trainer.resume()
        models.append(trainer.model)
    assert models[0].encoder.embedding.word.std() > 0.05  # random ones have 0.02
    torch.testing.assert_close(*(dict(model.named_parameters()) for model in models), rtol=0, atol=0)
