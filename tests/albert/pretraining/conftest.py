from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from albert.pretraining import PretrainSettings, check_start, pretrain
from albert.pretraining.trainer import Trainer
from albert.runtime import Process
from tests.conftest import save_small_model
from tests.corpora import make_corpus


@pytest.fixture(scope="package")
def small(tmp_path_factory, tokenizer):
    """A checkpoint of a model that trains in seconds."""
    folder = tmp_path_factory.mktemp("small")
    return save_small_model(folder, tokenizer, num_hidden_layers=2, max_position_embeddings=128)


@pytest.fixture(scope="package")
def corpora(tmp_path_factory, samples, vocabulary_file, tea_shards):
    """Shards by corpus: two fields, one without sentence order, one in long sequences and for spans too."""
    root, tea = tmp_path_factory.mktemp("workspace"), samples / "tea.jsonl"
    made = {
        "tea": (tea, {"max_seq_length": 64, "instances": {"sop": "on"}}),
        "general": (samples / "general.txt", {"max_seq_length": 64, "instances": {"sop": "off"}}),
        "spans": (tea, {"objective": "spanbert"}),
    }
    shards = {name: make_corpus(root, name, text, vocabulary_file, **of) for name, (text, of) in made.items()}
    return {"tea-128": tea_shards, **shards}


@pytest.fixture(scope="package")
def usual(tmp_path_factory, small, vocabulary_file, corpora):
    """A run of sixteen steps on corpus tea."""
    return PretrainSettings(
        run_folder=tmp_path_factory.mktemp("whole") / "run",
        shards=corpora["tea"],
        tokenizer_folder=vocabulary_file.parent,
        init=small,
        steps=16,
        batch_tokens=512,
        held_out_share=0.1,
        learning_rate=2e-3,
        evaluation={"held_out_tokens": 2000, "every": 4, "full_tokens": 0},
        running={"log_every": 1},
    )


@pytest.fixture(scope="package")
def whole(usual):
    """The result of that run, to be read alone."""
    return pretrain(usual)


@pytest.fixture
def settings(usual, tmp_path):
    """The same run in a folder of the test's own."""
    return replace(usual, run_folder=tmp_path / "run")


def with_options(settings, **options):
    """The settings with other values; a dict changes options within their group."""
    values = {
        name: replace(getattr(settings, name), **value) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    return replace(settings, **values)


def trainer_of(settings, process=None):
    return Trainer(settings, check_start(settings), 1e-3, process or Process())


def steps_of(trainer):
    """Steps of its data, without end, or of its process's part of them."""
    return trainer.data.steps(trainer.state.data)


def weights(folder):
    """The model's weights in a checkpoint, and the optimiser's state."""
    # copies: safetensors maps the file, which a test may overwrite
    names = ("model.safetensors", "trainer_state.safetensors")
    return {f"{n}/{k}": v.clone() for n in names for k, v in load_file(folder / n).items()}


def assert_same(first, second):
    """Two checkpoints, or the weights in them, are the same to the bit."""
    a, b = (weights(one) if isinstance(one, Path) else one for one in (first, second))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
