"""Batches and training on a small real corpus: what is held out, what is learnt, and exact resumption."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from albert.checkpoints import load_pretrained
from albert.evaluation import PROBE_SENTENCES
from albert.pretraining import (
    MANIFEST_FILE,
    check_start,
    list_checkpoints,
    pretrain,
    read_trainer_state,
    settled,
)
from albert.pretraining.start import prepare_folder
from albert.pretraining.state import STATE_FILE
from albert.runtime import Process
from data.errors import ConfigError, InputError
from data.files import sha256
from tests.albert.pretraining.conftest import assert_same, weights, with_options
from tests.conftest import change_json
from tests.workers import begin


def test_training_lowers_the_held_out_loss(settings):
    result = pretrain(with_options(settings, steps=40, evaluation={"every": 20}))
    first, last = result.evaluations()[0], result.evaluations()[-1]
    assert last["held_out_mlm_loss"] < first["held_out_mlm_loss"] - 0.5
    model, tokenizer = load_pretrained(result.checkpoint)
    assert tokenizer.vocab_size == model.config.vocab_size
    # the start is probed, and a notice says that its weights are random
    start = result.probe
    assert start.uniform_loss == pytest.approx(np.log(model.config.vocab_size)) and start.is_suspicious
    assert any(n.startswith("before training") and "hardly better than chance" in n for n in result.notices)
    assert 0 < start.sentences <= PROBE_SENTENCES and start.masked_tokens > start.sentences


def test_weights_that_start_from_the_corpus_know_its_frequencies_and_are_its_own(settings, tmp_path):
    from_corpus = replace(settings, init="tiny", init_weights="corpus", steps=1)
    first, again = (pretrain(replace(from_corpus, run_folder=tmp_path / name)) for name in ("a", "b"))
    before, known = first.history[0]["held_out_mlm_loss"], first.history[0]["held_out_bigram_loss"]
    assert known < before < np.log(load_pretrained(first.checkpoint)[1].vocab_size) - 1
    assert first.probe is None  # a preset is not probed
    assert_same(first.checkpoint, again.checkpoint)
    message = "init_weights=corpus is for a preset's name: .* has weights already"
    with pytest.raises(ConfigError, match=message):
        check_start(replace(from_corpus, init=settings.init))


def test_files_of_another_version_are_refused_in_one_line(settings):
    newest = pretrain(settings).checkpoint
    change_json(newest / STATE_FILE, unheard_of=1)
    change_json(newest / MANIFEST_FILE, **{STATE_FILE: sha256(newest / STATE_FILE)})
    with pytest.raises(InputError, match="16 is of another version of jixu: give .*: unknown unheard_of"):
        pretrain(settings)
    kept = settings.run_folder / "settings.json"
    refused = ('{"unheard_of": 1}', "unheard_of"), ("{}", "shards is missing"), ("[", "Expecting value")
    for text, told in refused:
        kept.write_text(text)
        with pytest.raises(InputError, match=f"no settings of this version.*--resume never: .*{told}"):
            pretrain(settings)
    assert pretrain(replace(settings, steps=2, resume="never")).resumed_from == 0


def test_a_run_that_has_ended_stays_as_it_is_and_is_refused_with_other_settings(settings, corpora, tmp_path):
    settings = replace(settings, init=str(shutil.copytree(settings.init, tmp_path / "start")))
    first = pretrain(settings)
    before = (first.checkpoint / MANIFEST_FILE).read_bytes()
    second = pretrain(settings)
    assert second.steps == 16 and second.resumed_from == 16 and second.history == first.history
    assert (second.checkpoint / MANIFEST_FILE).read_bytes() == before
    with pytest.raises(ConfigError, match="begun with other settings .batch_tokens 512 -> 256"):
        pretrain(replace(settings, batch_tokens=256))
    with pytest.raises(ConfigError, match="begun with other settings .the corpora or their versions"):
        pretrain(replace(settings, shards=corpora["general"]))
    shutil.copy(first.checkpoint / "model.safetensors", settings.init)
    with pytest.raises(ConfigError, match="begun with other settings .the weights at --init"):
        pretrain(settings)
    # what is not given is what it began with
    assert settled(replace(settings, batch_tokens=None), Process()).batch_tokens == 512
    with pytest.raises(ConfigError, match="this run would remove .*checkpoint-16, which it starts from"):
        pretrain(replace(settings, init=str(first.checkpoint), resume="never"))
    assert pretrain(replace(settings, batch_tokens=256, steps=2, resume="never")).resumed_from == 0
    assert json.loads((settings.run_folder / "settings.json").read_text())["resume"] == "auto"  # by torchrun
    prepare_folder(replace(settings, resume="never"))
    assert not (settings.run_folder / "result.json").exists() and not list_checkpoints(settings.run_folder)


def test_a_run_resumes_in_a_workspace_that_was_moved(settings, tmp_path):
    place = tmp_path / "workspace"
    shards = [place / "shards" / path.name for path in settings.shards]
    (place / "shards").mkdir(parents=True)
    for path, copy in zip(settings.shards, shards, strict=True):
        shutil.copy(path, copy)
    here = replace(settings, shards=tuple(shards), run_folder=place / "models" / "run")
    straight = weights(pretrain(here).checkpoint)
    shutil.rmtree(list_checkpoints(here.run_folder)[0])
    place.rename(tmp_path / "moved")
    moved = tuple(tmp_path / "moved" / path.relative_to(place) for path in shards)
    again = pretrain(replace(here, shards=moved, run_folder=tmp_path / "moved/models/run"))
    assert again.resumed_from == 12
    assert_same(straight, again.checkpoint)


def test_a_start_can_be_unshared_deepened_and_checkpointed(settings):
    growth = {"share": "none", "num_hidden_layers": 3}
    grown = with_options(settings, growth=growth, running={"activation_checkpointing": True})
    result = pretrain(grown)
    model, _ = load_pretrained(result.checkpoint)
    assert model.config.share == "none" and model.config.num_hidden_layers == 3
    assert len(result.layers) == 3 and all(change.distance > 0 for change in result.layers)
    # going on needs no growth anew
    assert pretrain(with_options(grown, running={"activation_checkpointing": False})).resumed_from == 16
    # a preset can be unshared too
    model, report, _ = check_start(with_options(settings, init="tiny", growth={"share": "none"}))
    first, second = model.encoder.attentions[:2]
    assert report is None and not torch.equal(first.output.weight, second.output.weight)


@pytest.mark.slow
def test_a_run_killed_at_many_points_ends_like_an_uninterrupted_one(settings, tmp_path):
    """SIGKILL at five random steps, SIGTERM at another: weights, optimiser, place in the data and losses."""
    running = {"checkpoint_every": 5, "log_every": 3}
    settings = with_options(settings, steps=50, evaluation={"every": 10}, running=running)
    straight = pretrain(settings)
    broken = replace(settings, run_folder=tmp_path / "broken")
    points = sorted(np.random.default_rng(5).choice(np.arange(3, 46), 6, replace=False).tolist())
    for number, point in enumerate(points):
        process = begin(pretrain, broken)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.is_alive() and last_step(broken) < point:
            time.sleep(0.005)
        (process.terminate if number == 3 else process.kill)()
        process.join()
        assert number != 3 or process.exitcode == 0
    finished = pretrain(broken)
    assert finished.resumed_from >= points[-1] - 5
    assert_same(straight.checkpoint, finished.checkpoint)
    one, other = (read_trainer_state(result.checkpoint) for result in (straight, finished))
    assert (one.data, one.tokens, one.trends) == (other.data, other.tokens, other.trends)
    assert [untimed(r) for r in straight.history] == [untimed(r) for r in finished.history]


def last_step(settings):
    """The step a run has come to, as its metrics say; a line may be half written."""
    path = settings.run_folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return json.loads(lines[-1])["step"] if lines else 0


def untimed(record):
    return {name: value for name, value in record.items() if name != "tokens_per_second"}
