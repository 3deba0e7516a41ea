"""From the options of a job to its plan: what cannot work is refused, of a deployment as of a command."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data.catalog import CheckpointRow, record_run
from data.errors import UserError
from data.workspace import Workspace
from flows.end_to_end import end_to_end
from flows.fine_tune import fine_tune
from flows.orchestration import find_checkpoint, pretraining_plan
from flows.orchestration.plans import PREPARE, Answer, tokenizer_folder
from flows.orchestration.settings import JOBS
from tests.conftest import SAMPLES, save_small_model
from tests.corpora import make_corpus


def plan(name, values):
    return PREPARE[name](JOBS[name](**values))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    return str(save_small_model(tmp_path_factory.mktemp("model") / "small", tokenizer))


@pytest.fixture
def whole(samples, checkpoint, tmp_path):
    """Options of an end-to-end run that can work."""
    splits = {split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")}
    shared = {"task": "tea-topics", "workspace": str(tmp_path / "w")}
    return {**splits, **shared, "domain": (str(samples / "tea.jsonl"),), "init": checkpoint}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None, "dev": None}, "--task, --dev missing"),
        ({"task": "/no/such/task.yaml"}, "task.yaml"),
        ({"dev": "/no/such/dev.tsv"}, "no file /no/such/dev.tsv"),
        ({"test": __file__}, "test_plans.py"),
        ({"domain": ("/no/such/text",)}, "source /no/such/text does not exist"),
        ({"general": ("/no/such/text",)}, "source /no/such/text does not exist"),
        ({"fine_tuning": {"seeds": (1, 1)}}, "give one or more, each once"),
        ({"init": "tiny"}, "give --general text to train a base model on"),
        ({"init": "huge", "general": (str(SAMPLES / "general.txt"),)}, "no preset 'huge'"),
        ({"init": str(Path(__file__).parent)}, "no config.json"),
    ],
)
def test_a_whole_run_that_cannot_work_is_refused_before_hours_of_pretraining(whole, change, message):
    with pytest.raises(UserError, match=message):
        plan("end-to-end", whole | change)


def test_a_whole_run_that_can_work_is_planned(whole):
    assert plan("end-to-end", whole).task == "tea-topics"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": ("/no/such/text",)}, "source /no/such/text does not exist"),
        ({"drift": {"event_if": "drift=0.3"}}, "'drift=0.3' is no condition"),
        ({"drift": {"pretrain_if": "drift>0.3"}}, "no checkpoint of a completed pretraining on 茶"),
        ({"running": {"runner": "dask"}}, "belong together"),
        ({"running": {"runner": "dask", "dask_address": "tcp://127.0.0.1:9"}}, "paths must be absolute"),
    ],
)
def test_a_refresh_that_cannot_work_is_refused(samples, vocabulary_file, change, message):
    given = {"corpus": "茶", "source": (str(samples / "tea.jsonl"),), "tokenizer": str(vocabulary_file)}
    given["workspace"] = "none-yet"
    assert plan("refresh-corpus", given).refresh.files
    with pytest.raises(UserError, match=message):
        plan("refresh-corpus", given | change)


def test_a_dry_run_is_answered(samples, vocabulary_file, tmp_path):
    given = {"corpus": "茶", "source": (str(samples / "tea.jsonl"),), "tokenizer": str(vocabulary_file)}
    answer = plan("refresh-corpus", given | {"workspace": str(tmp_path / "w"), "dry_run": True})
    assert isinstance(answer, Answer) and answer.text.startswith("茶 is new: 1 source(s)")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpora": {"domain": "law"}}, "no catalog in"),
        ({"corpora": {"general": "law"}}, "no catalog in"),
        ({"run": "../run"}, "run '../run': use 1 to 64 letters"),
        ({"optimizer": {"sweep": (1e-4, 1.0)}}, "1.0"),
    ],
)
def test_a_fine_tuning_that_cannot_work_is_refused(whole, checkpoint, change, message):
    given = {name: whole[name] for name in ("task", "train", "dev", "workspace")} | {"model": (checkpoint,)}
    assert plan("fine-tune", given).data
    with pytest.raises(UserError, match=message):
        plan("fine-tune", given | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": ()}, "give either --corpus or --source"),
        ({"corpus": "law"}, "give either --corpus or --source"),
        ({"corpus": "law", "source": ()}, "no catalog in"),
        ({"name": "a/b"}, "tokenizer 'a/b': use 1 to 64 letters"),
    ],
)
def test_a_vocabulary_that_cannot_be_learnt_is_refused(samples, change, message):
    given = {"source": (str(samples / "tea.jsonl"),), "workspace": "none-yet"}
    assert plan("train-tokenizer", given) == [str(samples / "tea.jsonl")]
    with pytest.raises(UserError, match=message):
        plan("train-tokenizer", given | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init": "tiny"}, "tiny"),
        ({"second": {"name": "general"}}, "first.name and second.name are tea and general"),
        ({"first": {"text": ("/no/such/text",)}}, "source /no/such/text does not exist"),
        ({"second": {"dev": "/no/such/dev.tsv"}}, "no file /no/such/dev.tsv"),
    ],
)
def test_an_experiment_that_cannot_work_is_refused(samples, whole, change, message):
    field = {name: whole[name] for name in ("task", "train", "dev", "test")} | {"text": whole["domain"]}
    given = {"general": (str(samples / "general.txt"),), "init": "tiny-zh"}
    given |= {"first": field | {"name": "tea"}, "second": field | {"name": "coffee"}}
    plan("lcqmc-experiment", given)
    for name, value in change.items():
        given[name] = given[name] | value if isinstance(value, dict) else value
    with pytest.raises(UserError, match=message):
        plan("lcqmc-experiment", given)


def test_a_deployments_run_is_refused_as_its_command_is(whole, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a deployment's")
    monkeypatch.setattr("flows.orchestration.mistakes.log", lambda *_: None)  # there is no run to log to
    (tmp_path / "w").mkdir()
    state = end_to_end.fn(**whole | {"dev": "/no/such/dev.tsv"})
    assert state.is_failed() and "no file /no/such/dev.tsv" in state.message
    task = {name: whole[name] for name in ("task", "train", "dev", "workspace")}
    state = fine_tune.fn(**task, model=(checkpoint, str(tmp_path / "gone")))
    assert state.is_failed() and "gone is not a checkpoint folder" in state.message
    assert not list((tmp_path / "w").iterdir())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("plans") / "w"
    make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
    make_corpus(root, "again", samples / "tea.jsonl", vocabulary_file)
    return root


def run_of(workspace, init="tiny", corpus="tea", **given):
    options = JOBS["continued-pretraining"](corpus=corpus, workspace=str(workspace), init=init, **given)
    return pretraining_plan(options).run


def test_a_run_is_named_by_all_that_changes_its_weights(workspace, tmp_path):
    start = tmp_path / "law-albert" / "checkpoint-100"
    start.mkdir(parents=True)
    different = [
        run_of(workspace),
        run_of(workspace, then="again:0.1"),
        run_of(workspace, mix=("again:0.1",)),
        run_of(workspace, objective={"mask_rates": (0.3, 0.15)}),
        run_of(workspace, steps=7),
        run_of(workspace, str(start)),
        run_of(workspace, str(start.parent)),
        run_of(workspace, "hf:hfl/chinese-albert@v1.0"),
        run_of(workspace, "hf:hfl/chinese-albert"),
        run_of(workspace, "hf:hfl/.-"),
        run_of(workspace, "hf:hfl/" + 40 * "a"),
    ]
    assert len(set(different)) == len(different)
    assert run_of(workspace, running={"checkpoint_every": 7, "tracker": "tensorboard"}) == different[0]
    names = [name.removeprefix("tea-v1-").rpartition("-")[0] for name in different[-6:]]
    assert names == ["law-albert", "law-albert", "chinese-albert", "chinese-albert", "start", 32 * "a"]


def test_a_run_has_the_same_name_wherever_its_workspace_lies(workspace, tmp_path):
    moved = Path(shutil.copytree(workspace, tmp_path / "moved"))
    names = []
    for root in (workspace, moved):
        start = root / "models" / "law" / "checkpoint-3"
        start.mkdir(parents=True)
        names.append(run_of(root, str(start)))
    assert names[0] == names[1] != run_of(moved, str(workspace / "models" / "law" / "checkpoint-3"))


@pytest.mark.parametrize("name", [None, "law"])
def test_an_unfinished_run_goes_on_with_the_version_it_was_begun_on(
    workspace, tmp_path, samples, vocabulary_file, name
):
    root = Path(shutil.copytree(workspace, tmp_path / "w"))
    first = run_of(root, run=name)
    known = {"corpus": "tea", "version": 1, "init": "tiny", "settings": {}, "steps": 5, "tokens": 50}
    known |= {"metrics": {}, "checkpoints": []}
    record_run(Workspace(root), run=first, status="interrupted", **known)
    make_corpus(root, "tea", samples / "general.txt", vocabulary_file)
    options = JOBS["continued-pretraining"](corpus="tea", workspace=str(root), init="tiny", run=name)
    going_on, anew = pretraining_plan(options), pretraining_plan(replace(options, resume="never"))
    assert (going_on.run, going_on.version.version, anew.version.version) == (first, 1, 2)
    assert set(going_on.settings.shards).isdisjoint(anew.settings.shards)
    # killed before it wrote its report
    record_run(Workspace(root), run=first, status="completed", **known)
    assert pretraining_plan(options).version.version == 1
    Workspace(root).report(first).mkdir(parents=True)
    assert pretraining_plan(options).version.version == 2


def test_a_corpus_of_another_vocabulary_or_without_its_shards_is_refused(
    workspace, tmp_path, samples, vocabulary_file
):
    root = Path(shutil.copytree(workspace, tmp_path / "w"))
    other, twin = tmp_path / "other.txt", tmp_path / "twin.txt"
    shutil.copy(vocabulary_file, twin)
    make_corpus(root, "twin", samples / "tea.jsonl", twin)
    assert run_of(root, mix=("twin:0.2",))
    other.write_text(vocabulary_file.read_text(encoding="utf-8") + "炒青\n", encoding="utf-8")
    (shard,) = make_corpus(root, "law", samples / "tea.jsonl", other)
    with pytest.raises(UserError, match="law was made with the vocabulary .*other.txt, tea with"):
        run_of(root, mix=("law:0.2",))
    shard.unlink()
    with pytest.raises(UserError, match=r"1 shard\(s\) of law version 1 are gone from .*--fix"):
        run_of(root, corpus="law")


def test_a_corpus_to_measure_models_by_must_be_there(workspace, whole, checkpoint):
    given = {name: whole[name] for name in ("task", "train", "dev")} | {"model": (checkpoint,)}
    given["workspace"] = str(workspace)
    plan("fine-tune", given | {"corpora": {"domain": "tea", "general": "again"}})
    for wrong in ({"domain": "law"}, {"general": "law"}):
        with pytest.raises(UserError, match="no corpus 'law' in this workspace"):
            plan("fine-tune", given | {"corpora": wrong})


def test_a_checkpoint_that_was_removed_is_none_to_start_from(workspace, tmp_path):
    root = Path(shutil.copytree(workspace, tmp_path / "w"))
    folder = root / "models" / "law" / "checkpoint-5"
    folder.mkdir(parents=True)
    known = {"corpus": "tea", "version": 1, "init": "tiny", "settings": {}, "steps": 5, "tokens": 50}
    rows = {"metrics": {}, "checkpoints": [CheckpointRow(5, "models/law/checkpoint-5", "0", 1.0, 0.5)]}
    record_run(Workspace(root), run="law", status="completed", **known, **rows)
    assert find_checkpoint(Workspace(root), "tea") == folder
    folder.rmdir()
    assert find_checkpoint(Workspace(root), "tea") is None


def test_a_vocabulary_that_stands_with_all_its_files_is_used_from_there(workspace, vocabulary_file, tmp_path):
    bare = Path(shutil.copy(vocabulary_file, tmp_path / "bare.txt"))
    place = Workspace(workspace)
    assert tokenizer_folder(vocabulary_file, place) == vocabulary_file.parent
    made = tokenizer_folder(bare, place)
    assert made.parent == place.tokenizers and made.name.startswith("bare-")
