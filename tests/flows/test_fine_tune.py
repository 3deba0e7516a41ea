"""Which corpora a model is known to have read, and which of them are searched for texts of the task."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect import flow

from albert.checkpoints import average, convert
from albert.finetuning import FineTuneSettings
from data.workspace import Workspace
from flows import fine_tune
from flows.orchestration import (
    CorporaOptions,
    FineTuneOptions,
    Reported,
    corpora_to_search,
    describe_report,
    plan_fine_tuning,
)
from flows.orchestration.measurements import contamination
from tests.albert.report_samples import BASE, BETTER, comparison, pretraining, report_of
from tests.conftest import save_small_model
from tests.corpora import ask, make_corpus, record


@pytest.fixture(scope="module")
def place(tmp_path_factory, samples, vocabulary_file):
    """A workspace of two corpora and two runs, the second of which began from the first's checkpoint."""
    place = Workspace(tmp_path_factory.mktemp("jixu"))
    for name in ("general", "tea"):
        make_corpus(place.root, name, samples / "tea.jsonl", vocabulary_file)
    record(place, "first")
    start = str(place.model("first") / "checkpoint-1")
    record(place, "second", corpus="law", init=start, settings={"mix": [{"name": "general"}], "then": None})
    return place


def read_by(place, *models, names=None, **options):
    settings = FineTuneSettings(task="topics", train="t.tsv", dev="d.tsv", models=models, names=names)
    facts = fine_tune.default_facts(place, settings, CorporaOptions(**options))
    return [tuple(name for name, _ in one.corpora) for one in facts]


def test_comparisons_that_measure_on_other_corpora_have_other_names():
    settings = FineTuneSettings(task="topics", train="t.tsv", dev="d.tsv", models=("a",))
    chosen = ({}, {"domain": "tea"}, {"general": "tea"}, {"domain": "law"})
    assert len({fine_tune.run_name(settings, CorporaOptions(**one)) for one in chosen}) == len(chosen)


def test_what_a_run_has_read_is_in_the_catalog_wherever_its_workspace_was_moved_or_copied_to(place, tmp_path):
    first, second = place.model("first") / "checkpoint-1", place.model("second") / "checkpoint-1"
    # law is no corpus of the workspace any more
    assert read_by(place, first, second) == [("tea",), ("general", "tea")]
    # whatever the options say, and in whichever order
    assert read_by(place, second, first, domain="law") == [("general", "tea"), ("tea",)]
    moved = Workspace(Path(shutil.copytree(place.root, tmp_path / "moved")))
    assert read_by(moved, moved.model("second") / "checkpoint-1") == [("general", "tea")]
    start = place.model("first") / "checkpoint-1"
    start.mkdir(parents=True)
    (start / "manifest.json").write_text("{}")
    assert read_by(moved, moved.model("second") / "checkpoint-1") == [("general",)]  # it is another's
    copied = Workspace(Path(shutil.copytree(place.root, tmp_path / "copied")))
    assert read_by(copied, copied.model("second") / "checkpoint-1") == [("general", "tea")]


def test_the_version_that_was_read_is_searched(tmp_path, samples, vocabulary_file):
    place = Workspace(tmp_path / "w")
    for source in ("tea.jsonl", "general.txt"):
        rules = {"gates": {"max_lost_documents": 1}}
        make_corpus(place.root, "tea", samples / source, vocabulary_file, **rules)
    record(place, "old")
    searched, _ = corpora_to_search(
        place, [place.model("old") / "checkpoint-1"], CorporaOptions(), has_read_domain=True
    )
    assert searched == (("tea", 1),)
    with (samples / "tea.jsonl").open(encoding="utf-8") as file:
        rows = ((json.loads(next(file))["text"],),)
    of_old, of_new = (contamination(rows, place, "tea", "test", version) for version in (1, None))
    assert (of_old.version, of_old.found, of_new.version, of_new.found) == (1, 1, 2, 0)


def test_of_checkpoints_from_elsewhere_and_a_run_from_one_the_options_tell(place, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    record(place, "third", init=str(before))
    assert read_by(place, before, after) == [(), ()]
    for trained in (after, place.model("third") / "checkpoint-1"):
        read = read_by(place, before, trained, domain="tea", general="general")
        assert read == [("general",), ("general", "tea")]
    # of the run the catalog knows that it read tea, and not law
    assert read_by(place, before, trained, domain="law", general="tea") == [("tea",), ("tea",)]
    assert read_by(replace(place, root=tmp_path), after, domain="tea") == [("tea",)]


def test_an_average_and_a_copy_have_read_what_their_checkpoints_have(place, tmp_path, tokenizer):
    trained = save_small_model(place.model("second") / "checkpoint-2", tokenizer)
    outside = save_small_model(tmp_path / "outside", tokenizer)
    average([trained, outside], place.model("mean"))
    convert(place.model("mean"), tmp_path / "copy", dtype="bf16")
    assert read_by(place, place.model("mean")) == read_by(place, tmp_path / "copy") == [("general", "tea")]
    # the other half comes from elsewhere, as does one of a recipe's two runs
    read = [("law",), ("law", "general", "tea")]
    assert read_by(place, outside, tmp_path / "copy", general="law") == read
    recipes = {"names": ("a", "b", "b"), "general": "law", "domain": "field"}
    assert read_by(place, outside, trained, outside, **recipes)[1] == ("law", "field", "general", "tea")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_comparison_says_how_far_it_is_and_names_a_corpus_too_large_to_be_searched_unasked(
    place, monkeypatch, tokenizer, write, capsys
):
    monkeypatch.setattr("flows.fine_tune.QUIET_SECONDS", 0)
    monkeypatch.setattr("flows.orchestration.measurements.MOST_SEARCHED", 100)
    first = place.model("first") / "checkpoint-1"
    assert read_by(place, first, general="general") == [()]
    assert read_by(place, first, domain="tea") == [("tea",)]
    save_small_model(first, tokenizer)
    dev = str(write("pairs.tsv", "绿茶怎么泡\t绿茶如何泡\t1\n红茶\t水温多高\t0\n"))
    options = FineTuneOptions(task="lcqmc-probe", dev=dev, model=(str(first),), workspace=str(place.root))
    plan = plan_fine_tuning(options)
    (note,) = flow(lambda: fine_tune.compare(options, plan).notes, name="compare")()
    assert "not searched for texts of the task: tea" in note and "--corpora.domain tea searches it" in note
    assert "\n10 of 11 runs, 0:00:00 left\n" in capsys.readouterr().err


def test_what_is_printed_of_a_comparison_names_the_model_that_stayed_at_chance_level(tmp_path):
    stuck = replace(BETTER, seeds=tuple(replace(seed, left_chance=False) for seed in BETTER.seeds))
    report = report_of(comparison(BASE, stuck), bases=[pretraining(tmp_path)])
    report = replace(report, warnings=("a warning",))
    printed = describe_report(Reported(report, tmp_path / "index.html", ("a model",)))
    assert "Runs that stayed at chance level: 3 of 3 of 继续." in printed
    assert "| MLM loss | 8.000 | 4.667 | −3.333 |" in printed
    assert printed.startswith(f"{report.verdict}\na warning\n")
    assert printed.endswith(f"\na model\nreport {tmp_path / 'index.html'}")


def test_a_model_may_be_named_as_a_recipe_with_a_number(tmp_path):
    law = replace(BETTER, name="law", checkpoints=("a", "b", "c"))
    fine_tune.record(Workspace(tmp_path), "r", comparison(BASE, law, replace(BETTER, name="law 1")))
    found = ask(tmp_path, "select distinct model from evaluations order by model")
    assert [name for (name,) in found] == ["base", "law 1", "law, run 1", "law, run 2", "law, run 3"]


def test_a_line_that_a_training_says_is_one_write(monkeypatch):
    # several speak at once, from threads
    written = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    fine_tune.say("before, seed 0: dev accuracy 50.00, 3 s")
    assert [part for part in written if part] == ["before, seed 0: dev accuracy 50.00, 3 s\n"]
