"""The jobs from other checkpoints: TensorFlow's folders, and repositories of the Hub."""

import pytest

from albert.checkpoints import load_pretrained
from tests.commands import complete
from tests.conftest import (
    copy_tensorflow_checkpoint,
    few_examples,
    few_texts,
    put_into_hub_cache,
    save_small_model,
)
from tests.corpora import ask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    """A few examples of the sample task, as options."""
    return {"task": "topics", **few_examples(tmp_path_factory.mktemp("task"))}


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory, tokenizer):
    """A cache with hf:org/albert-tea alone."""
    folder = tmp_path_factory.mktemp("hub")
    put_into_hub_cache(folder / "cache", save_small_model(folder / "model", tokenizer))
    return {"HF_HUB_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}


def test_models_from_tensorflow_and_from_the_hub_are_compared(splits, hub_cache, prefect_server, tmp_path):
    google = copy_tensorflow_checkpoint("google", tmp_path / "google")
    bright = copy_tensorflow_checkpoint("bright", tmp_path / "bright")
    models = [google, bright / "albert_model.ckpt", "hf:org/albert-tea"]
    tuning = {"seeds": "0,1", "epochs": 1, "learning_rate": 1e-4, "baselines": "no"}
    given = {**splits, "model": models, **tuning, "workspace": tmp_path / "w"}
    lines = complete("fine-tune", given, **hub_cache, **prefect_server).splitlines()
    start = lines.index("### Evaluation: topics") + 4
    names = [line.split(" | ")[0] for line in lines[start : start + 3]]
    assert names == ["| google", "| albert_model.ckpt", "| albert-tea"]
    counted = "select count(distinct model), count(*) from evaluations where metric = 'accuracy'"
    assert ask(tmp_path / "w", counted) == [(3, 12)]


def test_an_end_to_end_run_starts_from_the_hub(splits, hub_cache, prefect_server, tmp_path, tokenizer):
    given = splits | {"init": "hf:org/albert-tea", "domain": few_texts(tmp_path)[1], "steps": 4, "workers": 1}
    given |= {"text": {"max_seq_length": 64, "max_unknown_share": 1}, "pretraining": {"batch_tokens": 512}}
    given["fine_tuning"] = {"seeds": "0,1", "epochs": 1, "learning_rate": 1e-4, "baselines": "no"}
    given["workspace"] = tmp_path / "w"
    lines = complete("end-to-end", given, **hub_cache, **prefect_server).strip().splitlines()
    assert "after 4 steps" in lines[lines.index("### Pretraining") + 2]
    start = lines.index("### Evaluation: topics") + 4
    assert [line.split(" | ")[0] for line in lines[start : start + 2]] == ["| base model", "| continued"]
    (checkpoint,) = (tmp_path / "w" / "models").glob("*/checkpoint-4")
    model, own = load_pretrained(checkpoint)
    assert own.vocabulary == tokenizer.vocabulary and model.config.layout == "google"
