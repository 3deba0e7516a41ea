"""From the parameters of a flow to the settings of its work."""

import shutil
from pathlib import Path

import pytest

from data.catalog import record_run
from data.cleaning import CleaningRules, DuplicateRules, GuardRules, QualityRules
from data.errors import InputError
from data.refresh import GateRules, RefreshSettings
from data.workspace import Workspace
from flows.orchestration import (
    find_checkpoint,
    fine_tune_settings,
    next_start,
    pretraining_plan,
    refresh_settings,
)
from flows.orchestration.checks import CHECKS
from flows.orchestration.settings import _tokenizer_folder, held_out_share
from tests.conftest import make_corpus, save_small_model


def test_every_parameter_of_a_refresh_becomes_the_setting_of_its_name():
    plain = {
        "corpus": "茶", "tokenizer": "tea", "objective": "roberta", "max_seq_length": 64, "sop": "off",
        "text_format": "bert", "text_field": "body", "mask_rate": 0.2, "max_ngram": 2, "copies": 3, "seed": 4,
        "discover_words": 5, "workers": 6,
    }  # fmt: skip
    settings = refresh_settings(
        workspace="w", source=["a", "b"], dictionary=["terms.txt"], simplify=True, scrub=["url", "phone"],
        min_characters=7, min_han_share=0.8, blocklist="ads.txt", near_duplicates="0.9", guard=["dev.tsv"],
        guard_action="report", max_lost_documents=0.1, max_unknown_share=0.11, **plain,
    )  # fmt: skip
    assert settings == RefreshSettings(
        workspace=Path("w"),
        source=("a", "b"),
        dictionary=("terms.txt",),
        cleaning=CleaningRules(simplify=True, scrub=("url", "phone")),
        quality=QualityRules(min_characters=7, min_han_share=0.8, blocklist="ads.txt"),
        duplicates=DuplicateRules(near=0.9),
        guard=GuardRules(files=("dev.tsv",), action="report"),
        gates=GateRules(max_lost_documents=0.1, max_unknown_share=0.11),
        **plain,
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("settings") / "w"
    make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
    make_corpus(root, "again", samples / "tea.jsonl", vocabulary_file)
    return root


def run_of(workspace, init="tiny", **given):
    return pretraining_plan("tea", str(workspace), init, **given).run


def test_a_run_is_called_by_all_that_changes_its_weights(workspace, tmp_path):
    start = tmp_path / "law-albert" / "checkpoint-100"
    start.mkdir(parents=True)
    different = [
        run_of(workspace),
        run_of(workspace, then="again:0.1"),
        run_of(workspace, mix=["again:0.1"]),
        run_of(workspace, mask_rates=[0.3, 0.15]),
        run_of(workspace, steps=7),
        run_of(workspace, str(start)),
        run_of(workspace, str(start.parent)),
        run_of(workspace, "hf:hfl/chinese-albert@v1.0"),
        run_of(workspace, "hf:hfl/chinese-albert"),
        run_of(workspace, "hf:hfl/.-"),
        run_of(workspace, "hf:hfl/" + 40 * "a"),
    ]
    assert len(set(different)) == len(different)
    assert run_of(workspace, checkpoint_every=7, tensorboard=True) == different[0]
    names = [name.removeprefix("tea-v1-").rpartition("-")[0] for name in different[-6:]]
    assert names == ["law-albert", "law-albert", "chinese-albert", "chinese-albert", "start", 32 * "a"]


def test_a_run_is_called_the_same_wherever_its_workspace_lies(workspace, tmp_path):
    moved = Path(shutil.copytree(workspace, tmp_path / "moved"))
    names = []
    for root in (workspace, moved):
        start = root / "models" / "law" / "checkpoint-3"
        start.mkdir(parents=True)
        names.append(run_of(root, str(start)))
    assert names[0] == names[1] != run_of(moved, str(workspace / "models" / "law" / "checkpoint-3"))


def test_rates_to_choose_from_go_before_the_one_rate():
    given = {"task": "tea-topics", "train": "train.tsv", "dev": "dev.tsv", "model": ["a", "b"]}
    assert fine_tune_settings(**given, learning_rate=2e-5).learning_rates == (2e-5,)
    settings = fine_tune_settings(**given, learning_rate=2e-5, sweep=[1e-5, 3e-5], names=["one", "two"])
    assert settings.learning_rates == (1e-5, 3e-5) and settings.names == ("one", "two")
    assert settings.models == (Path("a"), Path("b"))
    assert (settings.train, settings.dev, settings.test) == (Path("train.tsv"), Path("dev.tsv"), None)


def test_a_corpus_of_another_vocabulary_or_without_its_shards_is_refused(
    workspace, tmp_path, samples, vocabulary_file
):
    root = Path(shutil.copytree(workspace, tmp_path / "w"))
    other, twin = tmp_path / "other.txt", tmp_path / "twin.txt"
    shutil.copy(vocabulary_file, twin)
    make_corpus(root, "twin", samples / "tea.jsonl", twin)
    assert run_of(root, mix=["twin:0.2"])
    other.write_text(vocabulary_file.read_text(encoding="utf-8") + "炒青\n", encoding="utf-8")
    (shard,) = make_corpus(root, "law", samples / "tea.jsonl", other)
    with pytest.raises(InputError, match="law was made with the vocabulary .*other.txt, tea with"):
        run_of(root, mix=["law:0.2"])
    shard.unlink()
    with pytest.raises(InputError, match=r"1 shard\(s\) of law version 1 are gone from .*--fix"):
        pretraining_plan("law", str(root), "tiny")


def test_a_corpus_to_measure_models_by_must_be_there(workspace, tmp_path, samples, tokenizer):
    model = [str(save_small_model(tmp_path / "small", tokenizer))]
    splits = {split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev")}
    given = {"task": "tea-topics", **splits, "model": model, "workspace": str(workspace)}
    CHECKS["fine_tune"](**given, corpus="tea", general="again")
    for wrong in ({"corpus": "law"}, {"general": "law"}):
        with pytest.raises(InputError, match="no corpus 'law' in this workspace"):
            CHECKS["fine_tune"](**given, **wrong)


def test_about_eight_documents_are_held_out_of_a_small_corpus():
    assert [held_out_share(n) for n in (10, 40, 100, 400, 10**6)] == [0.3, 0.2, 0.08, 0.02, 0.02]


def test_going_on_needs_a_checkpoint(tmp_path):
    settings = RefreshSettings(corpus="茶", source=("a",), workspace=tmp_path)
    assert next_start(None, settings) is None
    with pytest.raises(InputError, match="no checkpoint of a completed pretraining on 茶"):
        next_start("drift>0.2", settings)
    with pytest.raises(InputError, match="'drifts>0.2' is no condition"):
        next_start("drifts>0.2", settings)


def test_a_checkpoint_that_was_removed_is_none_to_go_on_from(workspace, tmp_path):
    root = Path(shutil.copytree(workspace, tmp_path / "w"))
    folder = root / "models" / "law" / "checkpoint-5"
    folder.mkdir(parents=True)
    row = {"step": 5, "path": "models/law/checkpoint-5", "sha256": "0", "mlm_loss": 1.0, "mlm_accuracy": 0.5}
    known = {"corpus": "tea", "version": 1, "init": "tiny", "settings": {}, "steps": 5, "tokens": 50}
    rows = {"metrics": {}, "checkpoints": [{**row, "sop_accuracy": None}]}
    record_run(Workspace(root), run="law", status="completed", **known, **rows)
    assert find_checkpoint(Workspace(root), "tea") == folder
    folder.rmdir()
    assert find_checkpoint(Workspace(root), "tea") is None


def test_a_vocabulary_that_stands_with_all_its_files_is_used_from_there(workspace, vocabulary_file, tmp_path):
    bare = shutil.copy(vocabulary_file, tmp_path / "bare.txt")
    place = Workspace(workspace)
    assert _tokenizer_folder(vocabulary_file, place) == vocabulary_file.parent
    made = _tokenizer_folder(bare, place)
    assert made.parent == place.tokenizers and made.name.startswith("bare-")


def test_an_empty_list_of_a_form_leaves_the_recipes(tmp_path):
    recipe = tmp_path / "tea.yaml"
    recipe.write_text("corpus: 茶\nsources: x.txt\ncleaning: {scrub: [url]}\n", encoding="utf-8")
    settings = refresh_settings(workspace="w", recipe=str(recipe), source=[], scrub=[], guard=[])
    assert settings.source == (str(tmp_path / "x.txt"),) and settings.cleaning.scrub == ("url",)
