"""What is wrong with a run is known before its work begins, of a deployment as of a command."""

from pathlib import Path

import pytest

from data.records import InputError
from flows.arguments import make_parser
from flows.checks import CHECKS
from flows.end_to_end import end_to_end
from flows.fine_tune import fine_tune
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


def test_a_deployments_run_is_refused_as_its_command_is(whole, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a deployment's")
    (tmp_path / "w").mkdir()
    with pytest.raises(InputError, match="no file /no/such/dev.tsv"):
        end_to_end.fn(**whole | {"dev": "/no/such/dev.tsv"})
    task = {name: whole[name] for name in ("task", "train", "dev", "workspace")}
    with pytest.raises(InputError, match="gone is not a checkpoint folder"):
        fine_tune.fn(**task, model=[str(checkpoint), str(tmp_path / "gone")])
    assert not list((tmp_path / "w").iterdir())
