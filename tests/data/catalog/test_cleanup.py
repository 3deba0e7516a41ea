import shutil
from dataclasses import replace

import pytest

from data.catalog import (
    collect_garbage,
    compact,
    examine,
    never_trained_share,
    open_workspace,
    read_catalog,
    remove_corpus,
    sole_writer,
)
from data.catalog.cleanup import _groups
from data.errors import InputError
from data.files import write_bytes
from data.instances import verify
from data.locks import hold
from data.refresh import build_batch, commit
from data.workspace import Workspace
from flows.__main__ import main
from tests.corpora import NEW, Corpus, record, shards_of, write_jsonl


def build_without_commit(corpus):
    planned, sources, division = corpus.divided()
    return planned, sources, division, build_batch(division.pieces, planned)


@pytest.fixture(scope="module")
def first(tmp_path_factory, samples, vocabulary_file):
    """A corpus of several shards, in a folder of its own, and a copy of that."""
    folder, gates = tmp_path_factory.mktemp("cleanup") / "corpus", {"max_unknown_share": 1.0}
    folder.mkdir()
    corpus = Corpus.begin(folder, vocabulary_file, samples / "tea.jsonl", gates=gates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.refresh.assign.SHARD_CHARACTERS", 8000)
        corpus.refresh()
    return corpus, shutil.copytree(folder, folder.with_name("copy"))


@pytest.fixture
def made(first, monkeypatch):
    """That corpus as it was at first."""
    monkeypatch.setattr("data.refresh.assign.SHARD_CHARACTERS", 8000)
    corpus, copy = first
    shutil.rmtree(corpus.root.parent)
    shutil.copytree(copy, corpus.root.parent)
    return corpus


def files(corpus):
    return {corpus.place.relative(path) for path in corpus.root.rglob("*.parquet")}


def leave(place, corpus):
    """Leave a file as a killed refresh does."""
    left = place.shards(corpus) / "0000000000000000.parquet"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"left")
    return left


def test_files_that_no_kept_version_uses_are_removed(made):
    first = files(made)
    made.put("new", NEW)
    made.refresh()
    orphan = leave(made.place, "tea")
    staged = made.place.staging("tea") / "listed.parquet.0123abcd.tmp"
    write_bytes(staged, b"left")
    shutil.rmtree(made.root / "locks")
    planned = collect_garbage(made.place, keep=2, dry_run=True)
    assert planned.files == tuple(map(made.place.relative, (orphan, staged))) and orphan.exists()
    assert not (made.root / "locks").exists()  # a dry run writes nothing
    collect_garbage(made.place, keep=2)
    assert not orphan.exists() and not staged.exists() and first <= files(made)
    gone = collect_garbage(made.place, keep=1)
    assert gone.versions == (("tea", 1),)
    for path, digest in made.ask("select path, sha256 from shards"):
        assert verify(made.root / path, digest)
    assert not made.refresh().is_new
    assert collect_garbage(made.place, keep=1).files == ()


def test_folders_that_are_links_to_another_disk_keep_their_files(made, tmp_path):
    for folder in ("shards", "documents"):
        (made.root / folder).rename(tmp_path / folder)
        (made.root / folder).symlink_to(tmp_path / folder)
        (made.root / folder / "lost+found").mkdir()
    made.put("new", NEW)
    assert made.refresh().kept_shards
    health = examine(made.place)
    assert not health.damaged and not health.garbage.files
    assert not made.refresh().is_new


@pytest.mark.parametrize("option", ["corpus", "mix", "then"])
def test_what_a_training_reads_is_not_removed_and_its_version_stays_afterwards(option, made):
    """A corpus is named by one of three options."""
    paths = made.ask("select path from version_shards order by position")
    tea = {"name": "tea", "shards": [made.root / path for (path,) in paths]}
    settings = {"corpus": {}, "mix": {"mix": [tea]}, "then": {"then": tea}}[option]
    record(made.place, "r", corpus="tea" if option == "corpus" else "law", settings=settings)
    made.put("new", NEW)
    made.refresh()
    assert collect_garbage(made.place, keep=1).versions == ()
    before = files(made)
    refusal = "r is being trained on corpus 'tea'"
    with hold(made.place.lock("run-r"), "taken"), pytest.raises(InputError, match=refusal):
        remove_corpus(made.place, "tea")
    assert files(made) == before
    assert remove_corpus(made.place, "tea") == ["r"]


def test_small_shards_are_merged_and_nothing_else_changes(made, monkeypatch):
    for number in range(2):
        made.put(str(number), f"第{number}篇新来的讲怎样选茶杯{'甲乙'[number] * 8}。白瓷的最公道。")
        made.refresh()

    def content():
        views = ("instances", "document_texts", "documents")
        with open_workspace(made.root) as statistics:
            lengths = statistics.lengths("tea").fetchall()
        return [made.ask(f"select * exclude (version) from {view} order by all") for view in views], lengths

    before = content()
    monkeypatch.setattr("data.catalog.cleanup.SHARD_CHARACTERS", 8000)
    version = compact(made.place, "tea")
    assert version.version == 4 and content() == before
    counts = "select count(*) from version_shards where version >= 3 group by version order by version"
    (shards,), (merged,) = made.ask(counts)
    totals = "select distinct documents, instances, tokens, words from versions where version >= 3"
    assert merged < shards and len(made.ask(totals)) == 1
    assert compact(made.place, "tea") is None
    assert not made.refresh().is_new
    one, sizes = shards_of(made.root, "tea")[0], (4000, 9, 3000, 3000, 2900, 4000)
    groups = _groups([replace(one, characters=size) for size in sizes])
    assert list(map(len, groups)) == [1, 3, 1, 1]  # in order, up to the usual size


def test_a_corpus_that_is_being_refreshed_is_left_alone_be_it_its_first_refresh(made, monkeypatch):
    refused = (lambda: collect_garbage(made.place, keep=1), lambda: compact(made.place, "tea"), made.refresh)
    with sole_writer(made.place, "tea"):
        for work in refused:
            with pytest.raises(InputError, match="another process"):
                work()
    for name, is_listed in (("new", True), ("newer", False)):  # the second begins after the listing
        with sole_writer(made.place, name), monkeypatch.context() as patch:
            new = build_without_commit(made.changed(corpus=name))
            if is_listed:
                with pytest.raises(InputError, match=f"'{name}' is being refreshed by another process"):
                    collect_garbage(made.place, keep=1)
            else:
                patch.setattr("data.catalog.cleanup.list_corpora", lambda workspace: ["tea", "new"])
                assert collect_garbage(made.place, keep=1).files == ()
            assert commit(*new).documents
        assert collect_garbage(made.place, keep=1).files == ()


def test_files_of_a_killed_refresh_are_removed_when_the_next_begins(made, tmp_path):
    """Nothing of another corpus, or of a version, is removed; and the killed one may be the first."""
    other = leave(made.place, "other")
    before = files(made)
    made.put("next", "茶要慢慢喝。水要慢慢烧。")
    build_without_commit(made)  # no lock, as after a killed process
    assert files(made) > before
    with sole_writer(made.place, "tea"):
        assert files(made) == before
    first = Workspace(tmp_path / "first")
    left = leave(first, "tea")
    with sole_writer(first, "tea"):
        assert not left.exists() and other.exists()


def test_a_corpus_is_removed_with_the_share_that_it_held_out(made, tmp_path, capsys):
    """A trial of a few documents holds out many of them, and so a share of all corpora."""

    def share():
        with read_catalog(made.place) as db:
            return never_trained_share(db)

    before, others = share(), files(made)
    trial = tmp_path / "trial.jsonl"
    write_jsonl(trial, *(f"第{number}篇讲怎样选茶杯。白瓷的最公道。" for number in "一二三四"))
    made.refresh(corpus="trial", source=(str(trial),))
    assert share() > before
    workspace = ["--workspace", str(made.root)]
    assert main(["corpus", "list", *workspace]) == 0
    *_, tea, one = capsys.readouterr().out.splitlines()
    assert tea.startswith("tea version 1: ") and one.startswith("trial version 1: 4 documents, ")
    trial.write_text(trial.read_text("utf-8") + '\n{"text": "茶。"}\n{"text": 6}', "utf-8")
    made.refresh(corpus="trial", source=(str(trial),))
    assert main(["corpus", "dropped", "trial", *workspace]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"text_not_string\t{trial}#line=6",
        f"too_short\t{trial}#line=5, 2 characters: 茶。",
    ]
    assert main(["corpus", "remove", "trial", *workspace]) == 0 and "trial is gone" in capsys.readouterr().out
    assert files(made) == others and share() == before
    assert made.ask("select distinct corpus from shards") == [("tea",)]
    assert not made.refresh().is_new
    assert main(["corpus", "gc", *workspace]) == 0 and "0 version(s), 0 file(s)" in capsys.readouterr().out


def test_what_cannot_be_tidied_is_refused_and_no_file_goes(made, capsys, monkeypatch):
    """A name may not lead out of its folder."""
    monkeypatch.chdir(made.root.parent)
    monkeypatch.setenv("JIXU_WORKSPACE", str(made.root))
    (made.root / "staging" / "tea").mkdir(parents=True)
    before = {*made.root.parent.rglob("*")}
    for command, message in (
        *((["remove", name], "use 1 to 64 letters") for name in ("..", "../..", "", "tea/../tea")),
        (["compact", "--corpus", "tea/../tea"], "use 1 to 64 letters"),
        *((command, "no corpus 'none'") for command in (["remove", "none"], ["compact", "--corpus", "none"])),
        (["remove", "tea", "--workspace", "misspelt"], "no catalog in misspelt"),
        (["compact", "--corpus", "tea", "--workspace", "misspelt"], "no catalog in misspelt"),
        (["gc", "--keep", "0"], "keep=0: it must be 1 or more"),
        (["dropped", "tea", "--each", "0"], "each=0: it must be 1 or more"),
        (["words", "--corpus", "tea", "--limit=-3"], "limit=-3: it must be 1 or more"),
        (["words", "--source", "a.txt", "b.txt"], "'b.txt' belongs to no option"),
    ):
        assert main(["corpus", *command]) == 2
        assert message in capsys.readouterr().err, command
        assert {*made.root.parent.rglob("*")} == before, command
