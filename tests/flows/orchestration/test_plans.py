"""From the options of a job to its plan: what cannot work is refused, of a deployment as of a command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from albert.pretraining import SETTINGS_FILE, checkpoint_folder, write_settings
from data.catalog import CheckpointRow, read_catalog, record_run
from data.errors import ConfigError, InputError, UserError
from data.tokenization import WordPieceTokenizer, load_tokenizer
from data.workspace import Workspace
from flows.end_to_end import end_to_end
from flows.fine_tune import fine_tune
from flows.orchestration import find_checkpoint, gather_facts
from flows.orchestration.plans import PREPARE, pretraining_plan, tokenizer_folder
from flows.orchestration.settings import JOBS
from tests import ROOT
from tests.commands import refused, run_here, typed_as
from tests.conftest import SAMPLES, save_small_model
from tests.corpora import make_corpus


def plan(name, values):
    return PREPARE[name](JOBS[name](**values))


TEA, GENERAL = str(SAMPLES / "tea.jsonl"), str(SAMPLES / "general.txt")
SPLITS = {split: str(SAMPLES / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")}
FIELD = {"text": [TEA], "task": "tea-topics", **SPLITS}
BRIGHT = str(ROOT / "tests" / "albert" / "tensorflow" / "bright")
SOUND = {
    "refresh-corpus": {"corpus": "茶", "source": [TEA], "tokenizer": "tiny-zh"},
    "continued-pretraining": {"corpus": "tea", "workspace": "MADE"},
    "fine-tune": {"task": "tea-topics", **SPLITS, "model": ["tiny-zh"]},
    "train-tokenizer": {"source": [TEA]},
    "end-to-end": {"domain": [TEA], "task": "tea-topics", **SPLITS, "init": "tiny-zh"},
    "lcqmc-experiment": {
        "general": [GENERAL],
        "init": "tiny-zh",
        "first": FIELD | {"name": "tea"},
        "second": FIELD | {"name": "coffee"},
    },
}
REFUSED = [
    ("refresh-corpus", {"source": ["/no/such/text"]}, "source /no/such/text does not exist"),
    ("refresh-corpus", {"tokenizer": "HERE/vocab.txt"}, "no [MASK] in"),
    ("refresh-corpus", {"max_seq_length": 513}, "max_seq_length='513': it must be less than or equal to 512"),
    ("refresh-corpus", {"recipe": "HERE/recipe.yaml"}, "unknown mask; did you mean masking?"),
    (
        "refresh-corpus",
        {"objective": "roberta", "instances": {"sop": "on"}},
        "sop=on: the objective roberta has no sentence order",
    ),
    ("refresh-corpus", {"drift": {"event_if": "drift=0.3"}}, "'drift=0.3' is no condition"),
    (
        "refresh-corpus",
        {"drift": {"pretrain_if": "drift>0"}},
        "no checkpoint of a completed pretraining on 茶",
    ),
    (
        "refresh-corpus",
        {"running": {"dask_address": "tcp://127.0.0.1:9"}, "workspace": "none-yet"},
        "paths must be absolute",
    ),
    ("continued-pretraining", {"corpus": "law"}, "no corpus 'law' in this workspace (there is: again, tea)"),
    (
        "continued-pretraining",
        {"init": "enormous"},
        "--init 'enormous' is no checkpoint folder and no preset",
    ),
    ("continued-pretraining", {"init": "HERE/short"}, "up to 128 tokens, the model"),
    ("continued-pretraining", {"init": BRIGHT}, "no vocab.txt, spiece.model or tokenizer.json in"),
    (
        "continued-pretraining",
        {"init": "bert-tiny", "growth": {"num_hidden_layers": 2}},
        "layers are only added",
    ),
    ("continued-pretraining", {"processes": 2, "running": {"accumulate": 1}}, "1 parts cannot be shared out"),
    ("continued-pretraining", {"mix": ["general"]}, "'general': give a corpus and its share as NAME:SHARE"),
    ("continued-pretraining", {"mix": ["nothing:0.2"]}, "no corpus 'nothing' in this workspace"),
    ("continued-pretraining", {"mix": ["tea:0.2"]}, "tea:0.2: that is the corpus itself"),
    ("fine-tune", {"task": "HERE/task.yaml"}, "no column 'sentence'"),
    ("fine-tune", {"model": ["HERE"]}, "no config.json"),
    ("fine-tune", {"model": ["tiny"]}, "a preset has no vocabulary and no weights"),
    ("fine-tune", {"train": "HERE/none.tsv"}, "no file"),
    ("fine-tune", {"corpora": {"domain": "law"}}, "no catalog in"),
    ("fine-tune", {"corpora": {"domain": "law"}, "workspace": "MADE"}, "no corpus 'law' in this workspace"),
    ("fine-tune", {"run": "../run"}, "run '../run': use 1 to 64 letters"),
    ("fine-tune", {"seeds": [1, 1]}, "give one or more, each once"),
    ("fine-tune", {"seeds": [-1]}, "seeds.0='-1': it must be greater than or equal to 0"),
    ("train-tokenizer", {"source": []}, "give either --corpus or --source"),
    ("train-tokenizer", {"corpus": "law"}, "give either --corpus or --source"),
    ("train-tokenizer", {"corpus": "law", "source": []}, "no catalog in"),
    ("train-tokenizer", {"name": "a/b"}, "tokenizer 'a/b': use 1 to 64 letters"),
    ("end-to-end", {"domain": [], "dev": []}, "--domain, --dev missing"),
    ("end-to-end", {"task": "/no/such/task.yaml"}, "task.yaml"),
    ("end-to-end", {"dev": "/no/such/dev.tsv"}, "no file /no/such/dev.tsv"),
    ("end-to-end", {"test": __file__}, "test_plans.py"),
    ("end-to-end", {"domain": ["/no/such/text"]}, "source /no/such/text does not exist"),
    ("end-to-end", {"init": "tiny"}, "give --general text to train a base model on"),
    ("end-to-end", {"init": "huge", "general": [GENERAL]}, "no preset 'huge'"),
    ("end-to-end", {"tokenizer": "HERE/other.txt"}, "is not the vocabulary of tiny-zh: leave"),
    ("end-to-end", {"tokenizer": "HERE/none.txt", "general": [GENERAL], "init": "tiny"}, "none.txt"),
    ("end-to-end", {"guard": {"files": ["/no/such/set"]}}, "guard file /no/such/set is no file"),
    ("end-to-end", {"init": "HERE/short"}, "has 64 positions: give --text.max-seq-length 64"),
    ("lcqmc-experiment", {"guard": {"files": ["/no/such/set"]}}, "guard file /no/such/set is no file"),
    ("lcqmc-experiment", {"pretraining_seeds": [0, 0]}, "pretraining_seeds=(0, 0): give each once"),
    ("lcqmc-experiment", {"first": {"name": "a/b"}}, "corpus 'a/b-task': use 1 to 64 letters"),
    ("lcqmc-experiment", {"init": "tiny"}, "tiny"),
    ("lcqmc-experiment", {"second": {"name": "general"}}, "first.name and second.name are tea and general"),
    ("lcqmc-experiment", {"first": {"text": ["/no/such/text"]}}, "source /no/such/text does not exist"),
    ("lcqmc-experiment", {"second": {"dev": "/no/such/dev.tsv"}}, "no file /no/such/dev.tsv"),
    ("lcqmc-experiment", {"second": {"dev": "HERE/dev.json"}}, "dev.json has 2 examples in 1 lines"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("plans") / "w"
    make_corpus(root, "tea", TEA, vocabulary_file)
    make_corpus(root, "again", TEA, vocabulary_file)
    return root


@pytest.fixture
def root(workspace, tmp_path):
    """A copy of the workspace, to be changed."""
    return Path(shutil.copytree(workspace, tmp_path / "w"))


def values(job, change, here, made):
    """The options of a job that can work, changed."""
    given = {"workspace": "HERE/w"} | SOUND[job]
    for name, value in change.items():
        given[name] = given.get(name, {}) | value if isinstance(value, dict) else value
    return json.loads(json.dumps(given).replace("HERE", str(here)).replace("MADE", str(made)))


@pytest.mark.parametrize("job", JOBS)
def test_what_can_work_is_planned(job, workspace, tmp_path):
    assert plan(job, values(job, {}, tmp_path, workspace))
    if job == "fine-tune":
        corpora = {"corpora": {"domain": "tea", "general": "again"}, "workspace": "MADE"}
        assert plan(job, values(job, corpora, tmp_path, workspace))


@pytest.mark.parametrize(("job", "change", "message"), REFUSED)
def test_what_cannot_work_is_refused_in_a_line_before_anything_is_written(
    job, change, message, workspace, tokenizer, tmp_path
):
    for name, content in (
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n好\n"),
        ("other.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n好\n"),
        ("recipe.yaml", "corpus: 茶\nmask: 1\n"),
        ("task.yaml", "name: t\ncolumns: {text: sentence}\n"),
        ("dev.json", '[{"text": "水", "label": "冲泡"}, {"text": "茶", "label": "冲泡"}]'),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    if "short" in str(change):
        save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    before = sorted(workspace.rglob("*"))
    refused(run_here(job, *typed_as(values(job, change, tmp_path, workspace))), message, tmp_path / "w")
    assert sorted(workspace.rglob("*")) == before


def test_what_is_set_beside_the_demonstration_takes_precedence(tmp_path):
    given = {
        "demo": True,
        "steps": 7,
        "fine_tuning": {"epochs": 2, "batch_size": 8},
        "workspace": str(tmp_path),
    }
    planned = plan("end-to-end", given)
    tuning = planned.fine_tuning
    assert (planned.steps, planned.text.copies, planned.domain) == (7, 4, (TEA,))
    assert (tuning.epochs, tuning.batch_size, tuning.learning_rate, len(tuning.seeds)) == (2, 8, 8e-4, 3)
    with pytest.raises(InputError, match="source /no/such/text does not exist"):
        plan("end-to-end", given | {"domain": ["/no/such/text"]})


def test_a_comparison_does_not_take_the_name_of_a_pretraining(tmp_path):
    options = values("fine-tune", {"run": "first"}, tmp_path, "")
    assert plan("fine-tune", options)
    folder = tmp_path / "w" / "models" / "first"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    with pytest.raises(InputError, match="'first' is a pretraining, whose report would be lost"):
        plan("fine-tune", options)


@pytest.mark.slow
def test_a_deployments_run_is_refused_as_its_command_is(prefect_server, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a deployment's")
    monkeypatch.setattr("flows.orchestration.mistakes.log", lambda *_: None)  # there is no run to log to
    state = end_to_end.fn(**values("end-to-end", {"dev": "/no/such/dev.tsv"}, tmp_path, ""))
    assert state.is_failed() and "no file /no/such/dev.tsv" in state.message
    state = fine_tune.fn(**values("fine-tune", {"model": ["HERE/gone"]}, tmp_path, ""))
    assert state.is_failed() and "gone is not a checkpoint folder" in state.message
    assert not (tmp_path / "w").exists()


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
    assert run_of(workspace, resume="never") == different[0]
    names = [name.removeprefix("tea-v1-").rpartition("-")[0] for name in different[-6:]]
    assert names == ["law-albert", "law-albert", "chinese-albert", "chinese-albert", "start", 32 * "a"]


def test_a_run_has_the_same_name_wherever_its_workspace_lies(workspace, root):
    starts = [str(place / "models" / "law" / "checkpoint-3") for place in (workspace, root)]
    for start in starts:
        Path(start).mkdir(parents=True)
    assert run_of(workspace, starts[0]) == run_of(root, starts[1]) != run_of(root, starts[0])


def pretraining_options(root, **given):
    return JOBS["continued-pretraining"](corpus="tea", workspace=str(root), init="tiny", **given)


def record(root, run, status, settings=None, checkpoints=(), version=1):
    """A run of five steps on a version of the corpus tea, as the catalog has it."""
    place = Workspace(root)
    known = {"corpus": "tea", "version": version, "init": "tiny", "steps": 5, "tokens": 50}
    known |= {"metrics": {}, "settings": settings or {}, "checkpoints": [*checkpoints]}
    record_run(place, run=run, status=status, **known)


def test_a_run_and_its_checkpoints_keep_their_times_when_they_are_recorded_again(root):
    ended, times = set(), []
    # of several processes a finished run is running again until its result is read
    for status, steps in (("completed", [1, 2]), ("running", [2, 3]), ("completed", [])):
        rows = [CheckpointRow(step, f"models/again/checkpoint-{step}", "0") for step in steps]
        record(root, "again", status, checkpoints=rows)
        with read_catalog(Workspace(root)) as db:
            ended |= set(db.execute("select finished_at from pretraining_runs").fetchall())
            found = db.execute("select step, created_at from checkpoints where run = 'again'").fetchall()
        times.append(dict(found))
        assert sorted(times[-1]) == steps
    assert len(ended) == 1 and times[0][2] == times[1][2] < times[1][3]


@pytest.mark.parametrize("name", [None, "law"])
def test_an_unfinished_run_goes_on_with_the_version_it_was_begun_on(root, samples, vocabulary_file, name):
    first = run_of(root, run=name)
    record(root, first, "interrupted")
    place = Workspace(root)
    reported = gather_facts(place, ["tea"])
    make_corpus(root, "tea", samples / "general.txt", vocabulary_file)
    options = pretraining_options(root, run=name)
    going_on, anew = pretraining_plan(options), pretraining_plan(replace(options, resume="never"))
    assert (going_on.run, going_on.version.version, anew.version.version) == (first, 1, 2)
    assert set(going_on.settings.shards).isdisjoint(anew.settings.shards)
    checkpoint = going_on.settings.run_folder / "checkpoint-1"
    assert gather_facts(place, ["tea"], checkpoint) == reported != gather_facts(place, ["tea"])
    # killed before it wrote its report
    record(root, first, "completed")
    assert pretraining_plan(options).version.version == 1
    place.report(first).mkdir(parents=True)
    assert pretraining_plan(options).version.version == 2
    if name is None:  # a later run took its place, and its report was deleted
        record(root, anew.run, "completed", version=2)
        Workspace(root).report(first).rmdir()
        Workspace(root).report(anew.run).mkdir()
        make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
        assert pretraining_plan(options).version.version == 3


def test_an_unfinished_run_keeps_its_second_corpus_too(root, tmp_path, samples, vocabulary_file):
    options = pretraining_options(root, mix=("again:0.2",), then="again:0.1")
    begun = pretraining_plan(options)
    begun.settings.run_folder.mkdir(parents=True)
    write_settings(begun.settings, begun.settings.run_folder / SETTINGS_FILE)
    record(root, begun.run, "interrupted", begun.settings)
    place = Workspace(root)
    reported = gather_facts(place, ["again"])
    make_corpus(root, "again", samples / "general.txt", vocabulary_file)
    assert pretraining_plan(options).settings.others == begun.settings.others
    checkpoint = begun.settings.run_folder / "checkpoint-1"
    assert gather_facts(place, ["again"], checkpoint) == reported != gather_facts(place, ["again"])
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    going_on = pretraining_plan(replace(options, workspace=str(moved))).settings
    names = [[shard.relative_to(moved) for shard in one.shards] for one in going_on.others]
    assert names == [[shard.relative_to(root) for shard in one.shards] for one in begun.settings.others]
    # another share is another run, and so are the texts that came since
    assert pretraining_plan(replace(options, mix=("again:0.3",))).settings.mix[0].share == 0.3
    assert pretraining_plan(replace(options, resume="never")).settings.others != begun.settings.others
    begun.settings.mix[0].shards[0].unlink()
    assert pretraining_plan(options).settings.others != begun.settings.others


def test_a_resumed_run_keeps_what_was_not_trained_on_when_it_began(root):
    options = pretraining_options(root)
    plan = pretraining_plan(options)
    plan.settings.run_folder.mkdir(parents=True)
    before = replace(plan.settings, never_trained_share=0.33)
    write_settings(before, plan.settings.run_folder / SETTINGS_FILE)
    assert pretraining_plan(options).settings == before
    anew = pretraining_plan(replace(options, resume="never"))
    assert anew.settings.never_trained_share == plan.settings.never_trained_share != 0.33


def test_a_resume_with_other_settings_is_refused_before_its_device_is_free(root):
    given = {"corpus": "tea", "workspace": str(root), "run": "law"}
    begun = plan("continued-pretraining", given).settings
    # as a training keeps them
    begun = replace(begun, batch_tokens=4096, running=replace(begun.running, accumulate=1))
    checkpoint_folder(begun.run_folder, 5).mkdir(parents=True)
    write_settings(begun, begun.run_folder / SETTINGS_FILE)
    assert plan("continued-pretraining", given)
    with pytest.raises(ConfigError, match="1 parts cannot be shared out to 2 processes"):
        plan("continued-pretraining", given | {"processes": 2})
    for change, named in (
        ({"steps": 7}, "steps 1000 -> 7"),
        ({"batch_tokens": 512}, "batch_tokens 4096 -> 512"),
    ):
        with pytest.raises(ConfigError, match=rf"was begun with other settings \({named}\)"):
            plan("continued-pretraining", given | change)
        assert plan("continued-pretraining", given | change | {"resume": "never"})


def test_a_corpus_of_another_vocabulary_or_without_its_shards_is_refused(root, tmp_path, vocabulary_file):
    other, twin = tmp_path / "other.txt", tmp_path / "twin.txt"
    shutil.copy(vocabulary_file, twin)
    make_corpus(root, "twin", TEA, twin)
    assert run_of(root, mix=("twin:0.2",))
    cased = tmp_path / "cased" / "vocab.txt"
    WordPieceTokenizer(load_tokenizer(twin).vocabulary, lower_case=False).save(cased.parent)
    make_corpus(root, "cased", TEA, cased)
    other.write_text(vocabulary_file.read_text(encoding="utf-8") + "炒青\n", encoding="utf-8")
    (shard,) = make_corpus(root, "law", TEA, other)
    for name, file in (("cased", "vocab.txt"), ("law", "other.txt")):
        with pytest.raises(UserError, match=f"{name} was made with the vocabulary .*{file}, tea with"):
            run_of(root, mix=(f"{name}:0.2",))
    shard.unlink()
    with pytest.raises(
        UserError, match=r"1 shard\(s\) of law version 1 are gone from .*--fix.*--resume never"
    ):
        run_of(root, corpus="law")


def test_a_checkpoint_that_was_removed_is_none_to_start_from(root):
    folder = root / "models" / "law" / "checkpoint-5"
    folder.mkdir(parents=True)
    record(root, "law", "completed", checkpoints=[CheckpointRow(5, "models/law/checkpoint-5", "0", 1.0, 0.5)])
    assert find_checkpoint(Workspace(root), "tea") == folder
    folder.rmdir()
    assert find_checkpoint(Workspace(root), "tea") is None


def test_a_vocabulary_that_stands_with_all_its_files_is_used_from_there(workspace, vocabulary_file, tmp_path):
    bare = Path(shutil.copy(vocabulary_file, tmp_path / "bare.txt"))
    place = Workspace(workspace)
    assert tokenizer_folder(vocabulary_file, place) == vocabulary_file.parent
    made = tokenizer_folder(bare, place)
    assert made.parent == place.tokenizers and made.name.startswith("bare-")
