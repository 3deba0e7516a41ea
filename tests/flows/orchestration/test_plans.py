"""From the options of a job to its plan: what cannot work is refused, of a deployment as of a command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from albert.pretraining import SETTINGS_FILE, checkpoint_folder, write_settings
from data.catalog import CheckpointRow, bring_in_tokenizers
from data.errors import ConfigError, InputError, UserError
from data.tokenization import WordPieceTokenizer, load_tokenizer
from data.workspace import Workspace
from flows.end_to_end import end_to_end
from flows.fine_tune import fine_tune
from flows.orchestration import find_checkpoint, gather_facts, judging_options
from flows.orchestration.plans import PREPARE, pretraining_plan, tokenizer_folder
from flows.orchestration.settings import JOBS
from tests import ROOT
from tests.commands import output_of, refused, run_here, typed_as
from tests.conftest import SAMPLES, save_small_model
from tests.corpora import ask, make_corpus, record


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
DRIFT = {"drift": {"pretrain_if": "drift>0"}}
REFUSED = {
    "refresh-corpus": [
        ({"source": ["/no", "~nor/this"]}, "source /no does not exist; source ~nor/this does"),
        ({"source": []}, "no source given"),
        ({"tokenizer": "nope"}, "no tokenizer 'nope'"),
        ({"tokenizer": []}, "no tokenizer given"),
        ({"corpus": []}, "corpus is missing"),
        ({"corp": "tea"}, "Did you mean --corpus"),
        ({"quality": {"min-charcters": 3}}, "--quality.min-charcters"),
        ({"tokenizer": "HERE/vocab.txt"}, "no [MASK] in"),
        ({"max_seq_length": 513}, "max_seq_length='513': it must be less than or equal to 512"),
        ({"recipe": "HERE/none.yaml"}, "no recipe"),
        ({"objective": "roberta", "instances": {"sop": "on"}}, "sop=on: the objective roberta has no"),
        ({"drift": {"event_if": "drift=0.3"}}, "'drift=0.3' is no condition"),
        ({"drift": {"pretrain_if": "loss>1"}, "dry_run": True}, "'loss>1' is no condition"),
        (DRIFT | {"corpus": "tea", "workspace": "MADE"}, "no checkpoint of a completed pretraining on tea"),
        ({"running": {"dask_address": "tcp://127.0.0.1:9"}, "workspace": "none"}, "paths must be absolute"),
    ],
    "continued-pretraining": [
        ({"corpus": "law"}, "no corpus 'law' in this workspace (there is: again, tea)"),
        ({"init": "enormous"}, "--init 'enormous' is no checkpoint folder, no preset and no hf:OWNER/NAME"),
        ({"init": "HERE/short"}, "up to 128 tokens, the model"),
        ({"init": BRIGHT}, "no vocab.txt, spiece.model or tokenizer.json in"),
        ({"init": "bert-tiny", "growth": {"num_hidden_layers": 2}}, "layers are only added"),
        ({"processes": 2, "running": {"accumulate": 1}}, "1 parts cannot be shared out"),
        ({"mix": ["0.2"]}, "'0.2': give a corpus and its share as NAME:SHARE"),
        ({"mix": ["nothing:0.2"]}, "no corpus 'nothing' in this workspace"),
        ({"mix": ["tea:0.2"]}, "tea:0.2: that is the corpus itself"),
        ({"objective": {"mask_rates": [0.001, 0.15]}}, "give two, both from 0.01 to 0.99"),
        ({"objective": {"mask_rates": [0.3, 0.15], "masking": "static"}}, "stored masks have a rate already"),
        ({"batch_tokens": 128, "running": {"accumulate": 2}}, "in 2 parts leaves fewer than 128 tokens"),
        ({"optimizer": {"reference_batch_tokens": 8192}}, "says what batch learning_rate is for"),
        ({"evaluation": {"max_forgetting": 0.1}}, "is about corpora mixed in: give --mix"),
    ],
    "fine-tune": [
        ({"task": "HERE/task.yaml"}, "no column 'sentence'"),
        ({"model": ["HERE"]}, "no config.json"),
        ({"model": ["tiny"]}, "a preset has no vocabulary and no weights"),
        ({"train": "HERE/none.tsv"}, "no file"),
        ({"train": []}, "no training file for tea-topics: pass --train"),
        ({"model": []}, "model is missing"),
        ({"corpora": {"domain": "law"}}, "no catalog in"),
        ({"corpora": {"general": "law"}, "workspace": "MADE"}, "no corpus 'law' in this workspace"),
        ({"run": "../run"}, "run '../run': use 1 to 64 letters"),
        ({"seeds": [1, 1]}, "give one or more, each once"),
        ({"task": "lcqmc-probe", "running": {"pooling": "cls"}}, "of kind similarity is read from the mean"),
        ({"seeds": [-1]}, "seeds.0='-1': it must be greater than or equal to 0"),
        ({"seeds": [2**31]}, "seeds.0='2147483648': it must be less than 2147483648"),
    ],
    "train-tokenizer": [
        ({"source": []}, "give either --corpus or --source"),
        ({"corpus": "law"}, "give either --corpus or --source"),
        ({"corpus": "law", "source": []}, "no catalog in"),
        ({"name": "a/b"}, "tokenizer 'a/b': use 1 to 64 letters"),
    ],
    "end-to-end": [
        ({"domain": [], "task": [], "train": []}, "--domain, --task, --train missing"),
        ({"task": "/no/such/task.yaml"}, "task.yaml"),
        ({"dev": "/no/such/dev.tsv"}, "no file /no/such/dev.tsv"),
        ({"test": __file__}, "test_plans.py"),
        ({"general": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"init": "nope"}, "--init nope is no checkpoint: give the folder of one, or --general"),
        ({"init": "huge", "general": [GENERAL]}, "no preset 'huge'"),
        ({"tokenizer": "HERE/other.txt"}, "is not the vocabulary of tiny-zh: leave"),
        ({"tokenizer": "HERE/none.txt", "general": [GENERAL], "init": "tiny"}, "none.txt"),
        ({"guard": {"files": ["/no/such/set"]}}, "guard file /no/such/set is no file"),
        ({"init": "HERE/short"}, "has 64 positions: give --text.max-seq-length 64"),
    ],
    "lcqmc-experiment": [
        ({"guard": {"files": ["/no/such/set"]}}, "guard file /no/such/set is no file"),
        ({"pretraining_seeds": [0, 0]}, "pretraining_seeds=(0, 0): give each once"),
        ({"first": {"name": "a/b"}}, "corpus 'a/b-task': use 1 to 64 letters"),
        ({"init": "tiny"}, "tiny"),
        ({"second": {"name": "general"}}, "first.name and second.name are tea and general"),
        ({"second": {"name": "tea-task"}}, "first.name and second.name are tea and tea-task"),
        ({"general": ["/no/such/text"]}, "source /no/such/text does not exist"),
        ({"first": {"text": ["/no/such/text"]}}, "source /no/such/text does not exist"),
        ({"second": {"text": ["/no/such/text"]}}, "source /no/such/text does not exist"),
        ({"second": {"dev": "/no/such/dev.tsv"}}, "no file /no/such/dev.tsv"),
        ({"second": {"dev": "HERE/dev.json"}}, "dev.json has 2 examples in 1 lines"),
        ({"second": {"dev": "HERE/dev.csv"}}, "dev.csv has 1 examples in 3 lines"),
    ],
}


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
    if job == "refresh-corpus":  # a first version, before which nothing can have been pretrained
        assert plan(job, values(job, DRIFT, tmp_path, workspace))
    if job == "train-tokenizer":
        assert plan(job, values(job, {"source": [TEA, str(SAMPLES / "*.jsonl")]}, tmp_path, "")) == [TEA]
    if job == "fine-tune":
        corpora = {"corpora": {"domain": "tea", "general": "again"}, "workspace": "MADE"}
        assert plan(job, values(job, corpora, tmp_path, workspace))


@pytest.mark.parametrize(
    ("job", "change", "message"), [(job, *case) for job, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_work_is_refused_in_a_line(job, change, message, workspace, tokenizer, tmp_path):
    """Before anything is written."""
    for name, content in (
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n好\n"),
        ("other.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n好\n"),
        ("task.yaml", "name: t\ncolumns: {text: sentence}\n"),
        ("dev.csv", 'text,label\n"水\n好",冲泡\n'),
        ("dev.json", '[{"text": "水", "label": "冲泡"}, {"text": "茶", "label": "冲泡"}]'),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    if "short" in str(change):
        save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=64)
    before = sorted(workspace.rglob("*"))
    refused(run_here(job, *typed_as(values(job, change, tmp_path, workspace))), message, tmp_path / "w")
    assert sorted(workspace.rglob("*")) == before


@pytest.mark.parametrize("job", ["fine-tune", "end-to-end"])
def test_dev_and_test_may_be_parts_of_train(job, tmp_path):
    assert plan(job, values(job, {"dev": None, "test": None}, tmp_path, ""))


def test_what_is_set_beside_the_demonstration_takes_precedence(tmp_path):
    given = {"demo": True, "steps": 7, "workspace": str(tmp_path)}
    given["fine_tuning"] = {"epochs": 2, "batch_size": 8}
    planned = plan("end-to-end", given)
    tuning = planned.fine_tuning
    assert (planned.steps, planned.text.copies, planned.domain) == (7, 4, (TEA,))
    assert (tuning.epochs, tuning.batch_size, tuning.learning_rate, len(tuning.seeds)) == (2, 8, 8e-4, 3)
    assert not judging_options(planned, ("a",)).corpora.general
    assert judging_options(replace(planned, general=(GENERAL,)), ("a",)).corpora.general == "general"
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


def plan_of(root, corpus="tea", init="tiny", **given):
    given = {"corpus": corpus, "workspace": str(root), "init": init} | given
    return pretraining_plan(JOBS["continued-pretraining"](**given))


def run_of(root, init="tiny", **given):
    return plan_of(root, init=init, **given).run


def write_begun(settings):
    """Write the settings of a run, as it does when it begins."""
    settings.run_folder.mkdir(parents=True, exist_ok=True)
    write_settings(settings, settings.run_folder / SETTINGS_FILE)


def test_a_run_is_named_by_all_that_changes_its_weights(workspace, tmp_path):
    start = tmp_path / "law-albert" / "checkpoint-100"
    start.mkdir(parents=True)
    hub = [f"hf:hfl/{name}" for name in ("chinese-albert@v1.0", "chinese-albert", ".-", 40 * "a")]
    changes = [{}, {"then": "again:0.1"}, {"mix": ("again:0.1",)}, {"objective": {"mask_rates": (0.3, 0.15)}}]
    changes += [{"steps": 7}, *({"init": init} for init in (str(start), str(start.parent), *hub))]
    different = [run_of(workspace, **change) for change in changes]
    assert len(set(different)) == len(different)
    assert run_of(workspace, running={"checkpoint_every": 7, "tracker": "tensorboard"}) == different[0]
    assert run_of(workspace, resume="never") == different[0]
    names = [name.removeprefix("tea-v1-").rpartition("-")[0] for name in different[-6:]]
    assert names == ["law-albert", "law-albert", "chinese-albert", "chinese-albert", "start", 32 * "a"]


def test_a_run_has_the_same_name_wherever_its_workspace_lies_and_one_that_a_run_may_have(
    workspace, root, vocabulary_file
):
    name = 64 * "茶"
    make_corpus(root, name, TEA, vocabulary_file)
    run = run_of(root, "hf:hfl/chinese-albert", corpus=name)
    assert run.startswith("茶") and "茶-v1-chinese-albert-" in run and len(run) == 64
    starts = [str(place / "models" / "law" / "checkpoint-3") for place in (workspace, root)]
    for start in starts:
        Path(start).mkdir(parents=True)
    assert run_of(workspace, starts[0]) == run_of(root, starts[1]) != run_of(root, starts[0])


def test_a_run_and_its_checkpoints_keep_their_times_when_they_are_recorded_again_in_any_time_zone(root):
    ended, times = set(), []
    # of several processes a finished run is running again until its result is read
    for status, steps in (("completed", [1, 2]), ("running", [2, 3]), ("completed", [])):
        rows = [CheckpointRow(step, f"models/again/checkpoint-{step}", "0") for step in steps]
        record(Workspace(root), "again", status, checkpoints=rows)
        ended |= set(ask(root, "select finished_at from pretraining_runs"))
        times.append(dict(ask(root, "select step, created_at from checkpoints where run = 'again'")))
        assert sorted(times[-1]) == steps
    assert len(ended) == 1 and times[0][2] == times[1][2] < times[1][3]
    # such as one that Python does not know
    program = "import sys; from tests.corpora import Path, Workspace, open_workspace, record; "
    program += "[record(Workspace(Path(sys.argv[1])), 'again') for _ in range(2)]; "
    program += "open_workspace(sys.argv[1]).versions().df()"
    output_of("-c", program, root, TZ="GMT+8")


@pytest.mark.parametrize("name", [None, "law"])
def test_an_unfinished_run_goes_on_with_the_version_it_was_begun_on(root, samples, vocabulary_file, name):
    first, place = run_of(root, run=name), Workspace(root)

    def version():
        return plan_of(root, run=name).version.version

    record(place, first, "interrupted")
    reported = gather_facts(place, ["tea"])
    make_corpus(root, "tea", samples / "general.txt", vocabulary_file)
    going_on, anew = plan_of(root, run=name), plan_of(root, run=name, resume="never")
    assert (going_on.run, going_on.version.version, anew.version.version) == (first, 1, 2)
    assert set(going_on.settings.shards).isdisjoint(anew.settings.shards)
    checkpoint = going_on.settings.run_folder / "checkpoint-1"
    assert gather_facts(place, ["tea"], checkpoint) == reported != gather_facts(place, ["tea"])
    record(place, first)  # killed before it wrote its report
    assert version() == 1
    place.report(first).mkdir(parents=True)
    assert version() == 2
    if name is None:  # a later run took its place, and its report was deleted
        record(place, anew.run, version=2)
        place.report(first).rmdir()
        place.report(anew.run).mkdir()
        make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
        assert version() == 3
    record(place, first, version=9)  # of a corpus that was removed, and made anew since
    assert gather_facts(place, ["tea"], checkpoint) == gather_facts(place, ["tea"])


def test_an_unfinished_run_keeps_its_second_corpus_too(root, tmp_path, samples, vocabulary_file):
    def planned(place=root, **given):
        shared = {"mix": ("again:0.2",), "then": "again:0.1", "objective": {"mask_rates": (0.3, 0.15)}}
        return plan_of(place, **shared | given)

    begun, place = planned(), Workspace(root)
    others = begun.settings.others
    shares = [(one.name, one.share, len(one.shards)) for one in others]
    assert shares == [("again", 0.2, 1), ("again", 0.1, 1)]
    assert begun.settings.objective.mask_rates == (0.3, 0.15)
    write_begun(begun.settings)
    record(place, begun.run, "interrupted", settings=begun.settings)
    reported = gather_facts(place, ["again"])
    make_corpus(root, "again", samples / "general.txt", vocabulary_file)
    assert planned().settings.others == others
    checkpoint = begun.settings.run_folder / "checkpoint-1"
    assert gather_facts(place, ["again"], checkpoint) == reported != gather_facts(place, ["again"])
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    names = [[shard.relative_to(moved) for shard in one.shards] for one in planned(moved).settings.others]
    assert names == [[shard.relative_to(root) for shard in one.shards] for one in others]
    # another share is another run, and so are the texts that came since
    assert planned(mix=("again:0.3",)).settings.mix[0].share == 0.3
    assert planned(resume="never").settings.others != others
    place.report(begun.run).mkdir(parents=True)
    for status in ("completed", "interrupted"):
        record(place, begun.run, status, settings=begun.settings)
        assert (planned().settings.others == others) == (status == "interrupted")
    begun.settings.mix[0].shards[0].unlink()
    assert planned().settings.others != others


def test_a_resumed_run_keeps_what_was_not_trained_on_when_it_began_and_no_other_settings(root):
    """Others are refused before its device is free."""
    first = plan_of(root).settings
    before = replace(first, never_trained_share=0.33)
    write_begun(before)
    assert plan_of(root).settings == before
    anew = plan_of(root, resume="never").settings
    assert anew.never_trained_share == first.never_trained_share != 0.33

    def resume(**changes):
        given = {"corpus": "tea", "workspace": str(root), "run": "law"}
        return plan("continued-pretraining", given | changes)

    begun = resume().settings
    # as a training keeps them
    begun = replace(begun, batch_tokens=4096, running=replace(begun.running, accumulate=1))
    checkpoint_folder(begun.run_folder, 5).mkdir(parents=True)
    write_begun(begun)
    assert resume()
    with pytest.raises(ConfigError, match="1 parts cannot be shared out to 2 processes"):
        resume(processes=2)
    for name, value, change in (("steps", 7, "1000 -> 7"), ("batch_tokens", 512, "4096 -> 512")):
        with pytest.raises(ConfigError, match=rf"was begun with other settings \({name} {change}\)"):
            resume(**{name: value})
        assert resume(**{name: value}, resume="never")
    with pytest.raises(ConfigError, match="for longer, begin another with its last checkpoint as --init$"):
        resume(steps=2000)
    bring_in_tokenizers(Workspace(root))  # as a workspace is published
    assert resume().settings.tokenizer_folder != begun.tokenizer_folder


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
    lost = r"1 shard\(s\) of law version 1 are gone from .*--fix.*--resume never"
    with pytest.raises(UserError, match=lost):
        run_of(root, corpus="law")


def test_a_checkpoint_that_was_removed_is_none_to_start_from(root):
    folder = root / "models" / "law" / "checkpoint-5"
    folder.mkdir(parents=True)
    record(Workspace(root), "law", checkpoints=[CheckpointRow(5, "models/law/checkpoint-5", "0", 1.0, 0.5)])
    assert find_checkpoint(Workspace(root), "tea") == folder
    folder.rmdir()
    assert find_checkpoint(Workspace(root), "tea") is None


def test_a_vocabulary_that_stands_with_all_its_files_is_used_from_there(workspace, vocabulary_file, tmp_path):
    bare = Path(shutil.copy(vocabulary_file, tmp_path / "bare.txt"))
    place = Workspace(workspace)
    assert tokenizer_folder(vocabulary_file, place) == vocabulary_file.parent
    made = tokenizer_folder(bare, place)
    assert made.parent == place.tokenizers and made.name.startswith("bare-")
    # a checkpoint would take along the vocabulary beside it, or none
    folder = shutil.copytree(vocabulary_file.parent, tmp_path / "both")
    law = Path(shutil.copy(vocabulary_file, folder / "law_vocab.txt"))
    assert tokenizer_folder(law, place).name.startswith("law_vocab-")
    (folder / vocabulary_file.name).unlink()
    assert tokenizer_folder(law, place).parent == place.tokenizers
