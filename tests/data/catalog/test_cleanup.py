import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data.catalog import (
    collect_garbage,
    compact,
    never_trained_share,
    read_catalog,
    record_run,
    remove_corpus,
    sole_writer,
)
from data.errors import InputError
from data.instances import verify
from data.locks import hold
from data.refresh import GateRules, build_batch, commit, divide, plan_refresh, read_batch
from data.workspace import Workspace
from flows.__main__ import main
from tests.corpora import ask, refresh_here, refresh_settings, write_jsonl


def build_without_commit(settings):
    """A refresh in this process, up to its commit."""
    planned = plan_refresh(settings)
    sources = read_batch(planned.files, planned)
    division = divide(planned, sources)
    shards = build_batch(division.pieces, planned)
    return planned, sources, division, shards


@pytest.fixture
def settings(tmp_path, samples, vocabulary_file, monkeypatch):
    monkeypatch.setattr("data.refresh.assign.SHARD_CHARACTERS", 8000)
    source = tmp_path / "raw"
    source.mkdir()
    (source / "tea.jsonl").write_bytes((samples / "tea.jsonl").read_bytes())
    gates = GateRules(max_unknown_share=1.0)
    settings = refresh_settings(tmp_path / "w", source, vocabulary_file, gates=gates)
    commit(*build_without_commit(settings))
    shutil.rmtree(settings.workspace / "staging")
    return settings


def files(workspace):
    return {str(p.relative_to(workspace)) for p in workspace.rglob("*.parquet")}


def add(settings, text, name="new.jsonl"):
    write_jsonl(Path(settings.source[0]) / name, text)
    return refresh_here(settings)


def test_files_that_no_kept_version_uses_are_removed(settings):
    first = files(settings.workspace)
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    orphan = settings.workspace / "shards/tea/0000000000000000.parquet"
    orphan.write_bytes(b"left by a killed refresh")
    place = Workspace(settings.workspace)
    planned = collect_garbage(place, keep=2, dry_run=True)
    assert planned.files == ("shards/tea/0000000000000000.parquet",) and orphan.exists()
    collect_garbage(place, keep=2)
    assert not orphan.exists() and first <= files(settings.workspace)
    gone = collect_garbage(place, keep=1)
    assert gone.versions == (("tea", 1),)
    for path, digest in ask(place.root, "select path, sha256 from shards"):
        assert verify(settings.workspace / path, digest)
    assert not refresh_here(settings).is_new
    assert collect_garbage(place, keep=1).files == ()


def record_training(place, option, status):
    """A run that read corpus tea, by one of the three options that name a corpus."""
    paths = ask(place.root, "select path from version_shards order by position")
    tea = {"name": "tea", "shards": [place.root / path for (path,) in paths]}
    record_run(
        place, run="r", corpus="tea" if option == "corpus" else "law", version=1, init="tiny",
        settings={"mix": [tea]} if option == "mix" else {"then": tea} if option == "then" else {},
        status=status, steps=1, tokens=1, metrics={}, checkpoints=[],
    )  # fmt: skip


@pytest.mark.parametrize("option", ["corpus", "mix", "then"])
def test_a_version_that_was_trained_on_stays(option, settings):
    place = Workspace(settings.workspace)
    record_training(place, option, "completed")
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    assert collect_garbage(place, keep=1).versions == ()


def test_small_shards_are_merged_and_nothing_else_changes(settings, monkeypatch):
    place = Workspace(settings.workspace)
    for number in range(4):
        text = f"第{number}篇新来的讲怎样选茶杯{'甲乙丙丁'[number] * 8}。白瓷的最公道。"
        add(settings, text, f"{number}.jsonl")

    def content():
        views = ("instances", "document_texts", "documents")
        return [ask(place.root, f"select * exclude (version) from {view} order by all") for view in views]

    before = content()
    monkeypatch.setattr("data.catalog.cleanup.SHARD_CHARACTERS", 8000)
    version = compact(place, "tea")
    assert version.version == 6 and content() == before
    counts = "select count(*) from version_shards where version >= 5 group by version order by version"
    (shards,), (merged,) = ask(place.root, counts)
    totals = "select distinct documents, instances, tokens, words from versions where version >= 5"
    assert merged < shards and len(ask(place.root, totals)) == 1
    assert compact(place, "tea") is None
    assert not refresh_here(settings).is_new


def test_a_corpus_that_is_being_refreshed_is_left_alone(settings):
    place = Workspace(settings.workspace)
    with sole_writer(place, "tea"):
        for work in (lambda: collect_garbage(place, keep=1), lambda: compact(place, "tea")):
            with pytest.raises(InputError, match="another process"):
                work()


def test_a_running_first_refresh_is_left_alone(settings):
    place = Workspace(settings.workspace)
    new = replace(settings, corpus="new")
    with sole_writer(place, "new"):
        made = build_without_commit(new)
        with pytest.raises(InputError, match="'new' is being refreshed by another process"):
            collect_garbage(place, keep=1)
        assert commit(*made).documents
    assert collect_garbage(place, keep=1).files == ()


def test_a_corpus_begun_after_the_listing_is_left_alone(settings, monkeypatch):
    place = Workspace(settings.workspace)
    monkeypatch.setattr("data.catalog.cleanup.list_corpora", lambda workspace: ["tea"])
    with sole_writer(place, "new"):
        made = build_without_commit(replace(settings, corpus="new"))
        assert collect_garbage(place, keep=1).files == ()
        assert commit(*made).documents


def test_files_of_a_killed_refresh_are_removed_when_the_next_begins(settings):
    """Nothing of another corpus, or of a version, is removed."""
    other = settings.workspace / "shards/other/0000000000000000.parquet"
    other.parent.mkdir()
    other.write_bytes(b"of another corpus")
    before = files(settings.workspace)
    write_jsonl(Path(settings.source[0]) / "next.jsonl", "茶要慢慢喝。水要慢慢烧。")
    build_without_commit(settings)  # no lock, as after a killed process
    assert files(settings.workspace) > before
    with sole_writer(Workspace(settings.workspace), "tea"):
        assert files(settings.workspace) == before


def test_a_refresh_that_fails_leaves_no_files(settings):
    """A disk that it has filled is not left so."""
    before = files(settings.workspace)
    write_jsonl(Path(settings.source[0]) / "tea.jsonl", "茶要慢慢喝。水要慢慢烧。")
    with pytest.raises(InputError, match="was not committed"):
        refresh_here(settings)
    assert files(settings.workspace) == before


def test_files_of_a_killed_first_refresh_are_removed_too(tmp_path):
    left = tmp_path / "shards/tea/0000000000000000.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left")
    with sole_writer(Workspace(tmp_path), "tea"):
        assert not left.exists()


def test_a_corpus_is_removed_with_the_share_that_it_held_out(settings, capsys):
    """A trial of a few documents holds out many of them, and so a share of all corpora."""
    place, others = Workspace(settings.workspace), files(settings.workspace)
    trial = settings.workspace.parent / "trial.jsonl"
    write_jsonl(trial, *(f"第{number}篇讲怎样选茶杯。白瓷的最公道。" for number in "一二三四"))
    with read_catalog(place) as db:
        share = never_trained_share(db)
    refresh_here(replace(settings, corpus="trial", source=(str(trial),)))
    with read_catalog(place) as db:
        assert never_trained_share(db) > share
    workspace = ["--workspace", str(settings.workspace)]
    assert main(["corpus", "remove", "trial", *workspace]) == 0 and "trial is gone" in capsys.readouterr().out
    assert files(settings.workspace) == others
    with read_catalog(place) as db:
        assert never_trained_share(db) == share
        assert db.execute("select distinct corpus from shards").fetchall() == [("tea",)]
    assert not refresh_here(settings).is_new
    assert main(["corpus", "remove", "trial", *workspace]) == 2
    assert "no corpus 'trial'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["corpus", "mix", "then"])
def test_a_corpus_is_not_removed_while_a_training_reads_it(option, settings):
    place = Workspace(settings.workspace)
    record_training(place, option, "running")
    before = files(place.root)
    refusal = "r is being trained on corpus 'tea'"
    with hold(place.lock("run-r"), "taken"), pytest.raises(InputError, match=refusal):
        remove_corpus(place, "tea")
    assert files(place.root) == before
    assert remove_corpus(place, "tea") == ["r"]


@pytest.mark.parametrize("name", ["..", "../..", "", "tea/../tea"])
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_removed(name, settings, capsys):
    place = settings.workspace
    (place / "staging" / "tea").mkdir(parents=True)
    before = sorted(place.parent.rglob("*"))
    for command in (["remove", name], ["compact", "--corpus", name]):
        assert main(["corpus", *command, "--workspace", str(place)]) == 2
        assert "use 1 to 64 letters" in capsys.readouterr().err
    assert sorted(place.parent.rglob("*")) == before


def test_the_commands_report_their_work(settings, capsys):
    workspace = ["--workspace", str(settings.workspace)]
    assert main(["corpus", "gc", *workspace]) == 0 and "0 version(s), 0 file(s)" in capsys.readouterr().out
    assert main(["corpus", "compact", "--corpus", "none", *workspace]) == 2
    assert "no corpus 'none'" in capsys.readouterr().err
    assert main(["corpus", "gc", "--keep", "0", *workspace]) == 2
