import asyncio
import json
import resource
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook as register_step_hook

import kernels
from albert.batching import Phase
from albert.checkpoints import find_source, load_pretrained
from albert.evaluation import bigram_loss, scores_of, sums_of
from albert.model import PretrainingObjective
from albert.model.span_boundary import SpanBoundaryHead
from albert.pretraining import (
    Corpus,
    check_start,
    list_checkpoints,
    pretrain,
    read_failure,
    read_result,
    read_settings,
    run,
    write_settings,
)
from albert.pretraining.__main__ import app
from albert.pretraining.start import phases
from data.errors import ConfigError, InputError
from data.terminal import run_app
from tests.albert.pretraining.conftest import assert_same, weights, with_options
from tests.conftest import save_small_model, small_model
from tests.flows.serving import wait_until
from tests.workers import begin


def test_a_mixed_in_corpus_is_evaluated_by_itself(settings, corpora):
    mix = (Corpus(name="general", shards=corpora["general"], share=0.3, held_out_share=0.1),)
    settings = with_options(settings, mix=mix, evaluation={"held_out_tokens": 500, "full_tokens": 4000})
    result = pretrain(settings)
    for record in result.evaluations():
        assert record["held_out_mlm_loss@general"] > 0
        assert record["held_out_mlm_loss@general"] != record["held_out_mlm_loss"]
    first, last = result.evaluations()[0], result.evaluations()[-1]
    # the change since the start has an interval
    for sample, corpus in product(("", "full_"), ("", "@general")):
        loss = f"{sample}held_out_mlm_loss"
        change = last[f"{loss}_change{corpus}"]
        assert change == pytest.approx(last[f"{loss}{corpus}"] - first[f"{loss}{corpus}"])
        low, high = (last[f"{loss}_change_{end}{corpus}"] for end in ("low", "high"))
        assert low < change < high
    assert first["full_held_out_masked_tokens"] > first["held_out_masked_tokens"]
    general = check_start(settings).streams["general"]
    assert first["held_out_bigram_loss@general"] == bigram_loss(general, general.held_out(4000))
    assert read_result(str(settings.run_folder)) == result
    settled = with_options(settings, running={"accumulate": 1}, init_sha256=find_source(settings.init).sha256)
    assert read_settings(settings.run_folder) == settled


def test_baselines_are_of_the_documents_that_are_scored(settings, tmp_path):
    losses = set()
    for tokens in (0, 200):  # in all 2,000, as an evaluation has no fewer than those in between
        folder, evaluation = tmp_path / f"{tokens}", {"full_tokens": tokens}
        one = with_options(settings, steps=1, evaluation=evaluation, run_folder=folder)
        losses.add(pretrain(one).history[0]["held_out_bigram_loss"])
    assert len(losses) == 1


def test_held_out_losses_are_those_of_the_checkpoint_in_fp32_whatever_the_run_computes_in(settings):
    settings = with_options(settings, running={"precision": "bf16"})
    stream = check_start(settings).streams[""]
    result = pretrain(settings)
    model, _ = load_pretrained(result.checkpoint)
    drawn = stream.held_out(settings.evaluation.held_out_tokens)
    scores = scores_of(sums_of(model.eval(), stream, drawn).numpy(), drawn.doc_keys)
    assert result.evaluations()[-1]["held_out_mlm_loss"] == pytest.approx(scores["mlm_loss"], rel=1e-6)


def test_longer_sequences_can_follow_shorter_ones(settings, corpora):
    then = Corpus(name="tea-128", shards=corpora["tea-128"], share=0.5, held_out_share=0.1)
    options = {"objective": {"mask_rates": (0.3, 0.15)}, "schedule": {"name": "wsd"}}
    result = pretrain(with_options(settings, then=then, **options))
    assert result.status == "completed"
    assert "held_out_mlm_loss@tea-128" in result.evaluations()[-1]
    # the first data are looked at, as they were masked then
    assert result.audits.rule_mask_rate == 0.3
    assert result.audits.masks.rate == pytest.approx(0.3, abs=0.03)
    mix = (Corpus(name="general", shards=corpora["general"], share=0.2),)
    assert phases(replace(settings, mix=mix)) == [Phase(16, (0.8, 0.2))]
    parts = [Phase(12, (0.8, 0.2, 0.0)), Phase(16, (0.0, 0.2, 0.8))]
    assert phases(replace(settings, mix=mix, then=replace(then, share=0.25))) == parts
    # what is held out of one is trained on in neither
    streams = check_start(replace(settings, then=replace(then, held_out_share=0.2))).streams.values()
    assert [stream.never_trained_share for stream in streams] == [0.2, 0.2]


def test_corpora_that_cannot_be_trained_on_together_are_refused(settings, corpora, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="named twice"):
        check_start(replace(settings, mix=(Corpus(name="a", shards=corpora["general"], share=0.2),) * 2))
    with pytest.raises(ConfigError, match="leave nothing for the corpus itself"):
        replace(settings, mix=tuple(Corpus(name=n, shards=corpora["general"], share=0.5) for n in "ab"))
    with pytest.raises(ConfigError, match="a share must lie between 0 and 1"):
        Corpus(name="a", shards=corpora["general"], share=1.0)
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not an instance shard"):
        check_start(replace(settings, shards=(tmp_path / "bad.parquet",)))
    save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    then = Corpus(name="tea-128", shards=corpora["tea-128"], share=0.5)
    message = "corpus tea-128 has .* up to 128 tokens, .* has 64 positions: .*--max-seq-length 64"
    with pytest.raises(ConfigError, match=message):
        check_start(replace(settings, init=str(tmp_path / "short"), then=then))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_that_cannot_run_are_refused_before_anything_is_written(settings, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(kernels.dispatch, "_choice", "triton")
    with pytest.raises(kernels.KernelError, match="the tensors are on cpu: move them to a GPU"):
        pretrain(settings)
    assert not settings.run_folder.exists()


def test_sentence_order_can_weigh_nothing(settings, whole):
    left_out = pretrain(with_options(settings, objective={"sop_weight": 0.0}))
    for name in ("sop_classifier.classifier.weight", "albert.pooler.weight"):
        start = load_file(Path(settings.init) / "model.safetensors")[name]
        before, after = (weights(r.checkpoint)[f"model.safetensors/{name}"] for r in (whole, left_out))
        assert torch.equal(after, start) and not torch.equal(before, after)  # nor does it decay


def test_a_span_is_predicted_from_its_boundary_alone(tokenizer):
    model = small_model(tokenizer)
    head = SpanBoundaryHead(model)
    hidden = torch.randn(12, model.config.hidden_size, requires_grad=True)
    states = head(hidden, torch.tensor([3, 4, 8]))[:2]
    (states * torch.randn_like(states)).sum().backward()
    assert hidden.grad.abs().sum(-1).nonzero().flatten().tolist() == [2, 5]
    assert not torch.equal(*states)  # they stand at different places of it


def test_the_further_losses_are_trained_and_come_back_where_a_checkpoint_is_damaged(settings, corpora):
    """The contrast drops out."""
    spans = with_options(settings, shards=corpora["spans"], objective={"contrast_weight": 0.1})
    result = pretrain(spans)
    losses = [r["boundary_loss"] for r in result.history if "boundary_loss" in r]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.3
    assert sum("contrast_loss" in r for r in result.history) == len(losses)
    assert "boundary" not in " ".join(load_file(result.checkpoint / "model.safetensors"))
    trained = weights(result.checkpoint)
    (result.checkpoint / "model.safetensors").write_bytes(b"damaged")
    again = pretrain(spans)
    assert again.resumed_from == 12 and any("damaged" in notice for notice in again.notices)
    assert_same(trained, again.checkpoint)
    for folder in list_checkpoints(spans.run_folder):
        (folder / "manifest.json").unlink()
    anew = pretrain(spans)
    assert anew.resumed_from == 0 and "no checkpoint is whole: beginning anew" in anew.notices


def test_the_best_checkpoint_is_kept_beside_the_newest_and_training_can_stop_early(settings):
    settings = replace(settings, steps=400, learning_rate=1e-2, held_out_share=0.3)
    evaluation, running = {"every": 5, "patience": 3, "full_tokens": 4000}, {"keep_checkpoints": 1}
    running["checkpoint_every"] = 400  # but for the best and the last
    overfit = with_options(settings, evaluation=evaluation, running=running, schedule={"name": "wsd"})
    result = pretrain(overfit)
    losses = {r["step"]: r["held_out_mlm_loss"] for r in result.evaluations() if r["step"]}
    assert result.steps < 400 and result.status == "completed"
    assert result.best_checkpoint.name == f"checkpoint-{min(losses, key=losses.get)}"
    assert result.checkpoint.name == f"checkpoint-{result.steps}"
    assert result.best_checkpoint.is_dir() and result.steps - int(result.best_checkpoint.name[11:]) == 15
    assert any("3 evaluations without a better one" in notice for notice in result.notices)
    again = pretrain(overfit)
    assert again.steps == result.steps and again.audits.loader_wait_share is None  # it has not waited
    # as many documents are measured at the early end as at the start
    first, last = (result.evaluations()[n]["full_held_out_masked_tokens"] for n in (0, -1))
    assert first == last > result.evaluations()[0]["held_out_masked_tokens"]


def test_a_checkpoint_by_time_changes_neither_losses_nor_weights(settings, whole):
    timed, steps = with_options(settings, running={"checkpoint_minutes": 1e-9}), []
    result = pretrain(timed, on_checkpoint=lambda state, *_: steps.append(state.step))
    assert steps == [*range(17)]
    losses = [[record["mlm_loss"] for record in r.history if "mlm_loss" in record] for r in (result, whole)]
    assert losses[0] == losses[1]
    assert_same(result.checkpoint, whole.checkpoint)


@pytest.mark.parametrize(("register", "left"), [(register_module_forward_hook, 6), (register_step_hook, 4)])
def test_a_run_cancelled_in_a_step_saves_the_one_before_unless_weights_change(
    settings, whole, register, left
):
    calls, watched = [], (torch.optim.Optimizer, PretrainingObjective)

    def cancel(part, *_):
        if isinstance(part, watched) and getattr(part, "training", True):
            calls.append(part)
            if len(calls) == 7:
                raise asyncio.CancelledError

    hook, seen = register(cancel), []
    with pytest.raises(asyncio.CancelledError):
        pretrain(settings, on_checkpoint=lambda state, _, status: seen.append((state.step, status)))
    hook.remove()
    expected = [(0, "running"), (4, "running"), (6, "interrupted")]
    assert seen == [(step, status) for step, status in expected if step <= left]
    result = pretrain(settings)
    assert result.resumed_from == left
    assert_same(result.checkpoint, whole.checkpoint)


def test_an_evaluation_that_was_cancelled_is_made_when_the_run_resumes(settings, whole, monkeypatch):
    evaluate, calls = run.evaluate, iter(range(9))

    def cancelled(*args, **options):
        if next(calls) in (3, 5):  # at step 12, and, after it was made there, at the end
            raise asyncio.CancelledError
        return evaluate(*args, **options)

    monkeypatch.setattr(run, "evaluate", cancelled)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            pretrain(settings)
    result = pretrain(settings)
    assert result.resumed_from == 16 and result.evaluations() == whole.evaluations()
    assert result.best_checkpoint.name == whole.best_checkpoint.name
    assert_same(result.checkpoint, whole.checkpoint)


def train_as_command(folder, most=None):
    """As `python -m albert.pretraining`; no file grows beyond `most` bytes, as on a full disk."""
    if most:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with (folder / "said.txt").open("w") as said, redirect_stdout(said), redirect_stderr(said):
        sys.exit(run_app(app, [str(folder / "settings.json")]))


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_whole(settings, tmp_path):
    straight = replace(settings, steps=8)
    newest = pretrain(straight).checkpoint
    half = max(path.stat().st_size for path in newest.iterdir()) // 2
    whole = shutil.copytree(newest, tmp_path / "whole")
    (newest / "model.safetensors").write_bytes(b"")
    write_settings(straight, tmp_path / "settings.json")
    ended, said = begin(train_as_command, tmp_path, half), tmp_path / "said.txt"
    ended.join()
    assert ended.exitcode == 2, said.read_text()
    for part in ("checkpoint-8 could not be written", "checkpoint-4 is whole"):
        assert part in said.read_text()
    assert "Traceback" not in said.read_text() and not list(straight.run_folder.glob("writing-*"))
    assert_same(whole, pretrain(straight).checkpoint)


def test_a_full_disk_elsewhere_is_reported_in_one_line(settings):
    def fill(state, folder, status):
        if state.step:
            Path("/dev/full").write_text("no room for this")

    if not Path("/dev/full").exists():
        pytest.skip("Linux has a device that is always full")
    with pytest.raises(InputError, match="the disk of .* is full .*make room and run the same command again"):
        pretrain(settings, on_checkpoint=fill)
    failure = read_failure(settings.run_folder)
    assert failure.status == "failed" and failure.reason.startswith("the disk of ")
    # refused, it has not been trained again
    with pytest.raises(ConfigError):
        pretrain(replace(settings, batch_tokens=256))
    assert read_failure(settings.run_folder) == failure
    told = []
    result = pretrain(settings, on_checkpoint=lambda state, _, status: told.append((state.step, status)))
    assert result.resumed_from == 4 and read_failure(settings.run_folder) is None
    assert told == [(4, "running"), (8, "running"), (12, "running"), (16, "completed")]
    pretrain(settings, on_checkpoint=lambda state, _, status: told.append((state.step, status)))
    assert len(told) == 4


def test_event_files_hold_the_metrics(settings):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pretrain(with_options(settings, running={"tracker": "tensorboard"}))
    (list_checkpoints(settings.run_folder)[0] / "manifest.json").unlink()
    result = pretrain(with_options(settings, running={"tracker": "tensorboard"}))
    assert result.resumed_from == 12
    events = accumulator.EventAccumulator(str(settings.run_folder / "tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("held_out_mlm_loss")}
    expected = {r["step"]: r["held_out_mlm_loss"] for r in result.evaluations()}
    assert logged == pytest.approx(expected, rel=1e-5)
    assert [event.step for event in events.Scalars("mlm_loss")] == list(range(1, 17))


def test_a_run_reports_its_masks_and_how_long_it_waited(settings, whole):
    static = pretrain(with_options(settings, objective={"masking": "static"}))
    for audits in (whole.audits, static.audits):
        assert audits.masks.whole_words == 1
        assert audits.masks.rate == pytest.approx(audits.rule_mask_rate, abs=0.02)
        assert sum(bucket.swapped for bucket in audits.by_length) > 0
        assert 0 <= audits.loader_wait_share < 1 and audits.peak_memory_bytes > 10**7
    assert static.audits.ngrams is None and whole.audits.ngrams is not None


def test_sigterm_ends_a_run_with_a_checkpoint_and_exit_code_75(settings, tmp_path):
    endless = with_options(settings, steps=10**6, evaluation={"every": 10**6})
    write_settings(endless, tmp_path / "settings.json")
    started = begin(train_as_command, tmp_path)
    metrics = settings.run_folder / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 3)
    started.terminate()
    started.join(120)
    (checkpoint,) = list_checkpoints(settings.run_folder)
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert started.exitcode == 75 and "run: interrupted after" in (tmp_path / "said.txt").read_text()
    assert checkpoint.name == f"checkpoint-{last['step']}"
