"""What is wrong with a run is known before its work begins, of a deployment as of a command."""

from pathlib import Path

import pytest

from data.errors import InputError
from flows.end_to_end import end_to_end
from flows.fine_tune import fine_tune
from flows.orchestration.arguments import make_parser
from flows.orchestration.checks import CHECKS
from tests.conftest import SAMPLES, save_small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    return save_small_model(tmp_path_factory.mktemp("model") / "small", tokenizer)


@pytest.fixture
def whole(samples, checkpoint, tmp_path):
    """Parameters of an end-to-end run that can work."""
    given = vars(make_parser("end_to_end").parse_args([]))
    splits = {split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")}
    domain = [str(samples / "tea.jsonl")]
    return given | splits | {
        "task": "tea-topics", "domain": domain, "init": str(checkpoint), "workspace": str(tmp_path / "w"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None, "dev": None}, "--task, --dev missing"),
        ({"task": "/no/such/task.yaml"}, "task.yaml"),
        ({"dev": "/no/such/dev.tsv"}, "no file /no/such/dev.tsv"),
        ({"test": __file__}, "test_checks.py"),
        ({"domain": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"general": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"seeds": [1, 1]}, "give one or more, each once"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"learning_rate": 2.0}, "learning_rate=2.0"),
        ({"max_seq_length": 7}, "max_seq_length=7"),
        ({"init": "tiny"}, "give --general text to train a base model on"),
        ({"init": "huge", "general": [str(SAMPLES / "general.txt")]}, "no preset 'huge'"),
        ({"init": str(Path(__file__).parent)}, "no config.json"),
    ],
)
def test_a_whole_run_that_cannot_work_is_refused_before_hours_of_pretraining(whole, change, message):
    CHECKS["end_to_end"](**whole)
    with pytest.raises(ValueError, match=message):
        CHECKS["end_to_end"](**whole | change)


def parameters(command, **given):
    """Of a command, with its defaults; None where it has no default."""
    actions = make_parser(command)._actions
    return {action.dest: action.default for action in actions if action.dest != "help"} | given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"event_if": "drift=0.3"}, "'drift=0.3' is no condition"),
        ({"then_pretrain_if": "drift>0.3"}, "no checkpoint of a completed pretraining on 茶"),
        ({"then_steps": 0}, "then_steps=0"),
        ({"task_hours": 0.0}, "task_hours=0.0"),
        ({"task_hours": float("nan")}, "task_hours=nan"),
        ({"runner": "dask"}, "belong together"),
        ({"runner": "dask", "dask_address": "tcp://127.0.0.1:9"}, "paths must be absolute"),
    ],
)
def test_a_refresh_that_cannot_work_is_refused(samples, vocabulary_file, change, message):
    given = {"corpus": "茶", "source": [str(samples / "tea.jsonl")], "tokenizer": str(vocabulary_file)}
    given = parameters("refresh_corpus", **given, workspace="none-yet")
    CHECKS["refresh_corpus"](**given)
    with pytest.raises(InputError, match=message):
        CHECKS["refresh_corpus"](**given | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "workers=0"),
        ({"corpus": "law"}, "no catalog in"),
        ({"general": "law"}, "no catalog in"),
        ({"run": "../run"}, "run '../run': use 1 to 64 letters"),
        ({"sweep": [1e-4, 1.0]}, "learning_rate=1.0"),
    ],
)
def test_a_fine_tuning_that_cannot_work_is_refused(whole, checkpoint, change, message):
    given = {name: whole[name] for name in ("task", "train", "dev", "workspace")}
    given = parameters("fine_tune", **given, model=[str(checkpoint)])
    CHECKS["fine_tune"](**given)
    with pytest.raises(ValueError, match=message):
        CHECKS["fine_tune"](**given | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": []}, "give either --corpus or --source"),
        ({"corpus": "law"}, "give either --corpus or --source"),
        ({"corpus": "law", "source": []}, "no catalog in"),
        ({"vocab_size": 99}, "vocab_size=99"),
        ({"name": "a/b"}, "tokenizer 'a/b': use 1 to 64 letters"),
    ],
)
def test_a_vocabulary_that_cannot_be_learnt_is_refused(samples, change, message):
    given = parameters("train_tokenizer", source=[str(samples / "tea.jsonl")], workspace="none-yet")
    CHECKS["train_tokenizer"](**given)
    with pytest.raises(InputError, match=message):
        CHECKS["train_tokenizer"](**given | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["albert", "gpt"]}, "no architecture 'gpt'"),
        ({"scale": 0.0}, "scale=0.0"),
        ({"domain": []}, "the law experiment needs text of its field"),
        ({"domain": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"dev": "/no/such/dev.tsv"}, "no file /no/such/dev.tsv"),
    ],
)
def test_an_experiment_that_cannot_work_is_refused(samples, whole, change, message):
    given = {name: whole[name] for name in ("task", "train", "dev", "test", "domain")}
    given = parameters("lcqmc_experiment", **given, general=[str(samples / "general.txt")], experiment="law")
    CHECKS["lcqmc_experiment"](**given)
    with pytest.raises(InputError, match=message):
        CHECKS["lcqmc_experiment"](**given | change)


def test_a_pretraining_in_no_process_is_refused():
    with pytest.raises(InputError, match="processes=0: it must be 1 or more"):
        CHECKS["continued_pretraining"](**parameters("continued_pretraining", corpus="tea", processes=0))


def test_a_deployments_run_is_refused_as_its_command_is(whole, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a deployment's")
    (tmp_path / "w").mkdir()
    with pytest.raises(InputError, match="no file /no/such/dev.tsv"):
        end_to_end.fn(**whole | {"dev": "/no/such/dev.tsv"})
    task = {name: whole[name] for name in ("task", "train", "dev", "workspace")}
    with pytest.raises(InputError, match="gone is not a checkpoint folder"):
        fine_tune.fn(**task, model=[str(checkpoint), str(tmp_path / "gone")])
    assert not list((tmp_path / "w").iterdir())
