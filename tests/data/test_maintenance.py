import json
from dataclasses import replace

import pytest

from data.catalog import main, read_catalog
from data.maintenance import collect_garbage, compact
from data.quality import GateRules
from data.records import InputError
from data.refresh import RefreshSettings, locked, refresh
from data.shards import verify
from data.statistics import open_workspace
from data.workspace import Workspace


@pytest.fixture
def settings(tmp_path, samples, vocabulary_file, monkeypatch):
    monkeypatch.setattr("data.refresh.SHARD_CHARACTERS", 8000)
    source = tmp_path / "raw"
    source.mkdir()
    (source / "tea.jsonl").write_bytes((samples / "tea.jsonl").read_bytes())
    settings = RefreshSettings(
        corpus="tea",
        sources=(str(source),),
        workspace=tmp_path / "w",
        tokenizer=str(vocabulary_file),
        gates=GateRules(max_unknown_share=1.0),
        workers=1,
    )
    refresh(settings)
    return settings


def files(workspace):
    return {str(p.relative_to(workspace)) for p in workspace.rglob("*.parquet")}


def add(settings, text, name="new.jsonl"):
    from pathlib import Path

    folder = Path(settings.sources[0])
    (folder / name).write_text(json.dumps({"text": text}, ensure_ascii=False), encoding="utf-8")
    return refresh(settings)


def test_garbage_is_what_no_kept_version_uses(settings):
    first = files(settings.workspace)
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    orphan = settings.workspace / "shards/tea/0000000000000000.parquet"
    orphan.write_bytes(b"left by a killed refresh")
    place = Workspace(settings.workspace)
    told = collect_garbage(place, keep=2, dry_run=True)
    assert told.files == ("shards/tea/0000000000000000.parquet",) and orphan.exists()
    collect_garbage(place, keep=2)
    assert not orphan.exists() and first <= files(settings.workspace)
    gone = collect_garbage(place, keep=1)
    assert gone.versions == (("tea", 1),)
    with read_catalog(place) as db:
        for path, digest in db.execute("select path, sha256 from shards").fetchall():
            assert verify(settings.workspace / path, digest)
    assert not refresh(settings).is_new
    assert collect_garbage(place, keep=1).files == ()


def test_a_version_that_was_trained_on_stays(settings):
    from data.catalog import record_run

    place = Workspace(settings.workspace)
    record_run(
        place, run="r", corpus="tea", version=1, init="tiny", settings={}, status="completed", steps=1,
        tokens=1, metrics={}, checkpoints=[],
    )  # fmt: skip
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    assert collect_garbage(place, keep=1).versions == ()


def test_small_shards_are_merged_and_nothing_else_changes(settings):
    place = Workspace(settings.workspace)
    for number in range(4):
        add(
            settings,
            f"第{number}篇新来的讲怎样选茶杯{'甲乙丙丁'[number] * 8}。白瓷的最公道。",
            f"{number}.jsonl",
        )

    def content():
        with open_workspace(settings.workspace) as statistics:
            return [
                statistics.sql(f"select * exclude (version) from {view} order by all").fetchall()
                for view in ("instances", "document_texts", "documents")
            ]

    before = content()
    with read_catalog(place) as db:
        ((shards,),) = db.execute("select count(*) from version_shards where version = 5").fetchall()
    version = compact(place, "tea", characters=8000)
    assert version.version == 6 and content() == before
    with read_catalog(place) as db:
        ((merged,),) = db.execute("select count(*) from version_shards where version = 6").fetchall()
        totals = db.execute(
            "select documents, instances, tokens, words from versions where version >= 5"
        ).fetchall()
    assert merged < shards and totals[0] == totals[1]
    assert compact(place, "tea", characters=8000) is None
    assert not refresh(settings).is_new


def test_a_corpus_that_is_being_refreshed_is_left_alone(settings):
    place = Workspace(settings.workspace)
    with locked(place, "tea"):
        for work in (lambda: collect_garbage(place, keep=1), lambda: compact(place, "tea")):
            with pytest.raises(InputError, match="another process"):
                work()


def test_the_commands_say_what_they_did(settings, capsys):
    workspace = ["--workspace", str(settings.workspace)]
    assert main(["gc", *workspace]) == 0 and "0 version(s), 0 file(s)" in capsys.readouterr().out
    assert main(["compact", "--corpus", "none", *workspace]) == 2
    assert "no corpus 'none'" in capsys.readouterr().err
    assert main(["gc", "--keep", "0", *workspace]) == 2


def test_what_goes_away_brings_back_what_it_hid(settings):
    """A near copy in an unchanged file is read again when the document it repeated is removed."""
    from pathlib import Path

    folder = Path(settings.sources[0])
    text = "这一篇讲怎样挑选一只合适的茶杯。白瓷的最公道，紫砂的最有味。先看口沿，再看杯底，最后倒水试一试。"
    (folder / "a.jsonl").write_text(json.dumps({"text": text}), encoding="utf-8")
    (folder / "b.jsonl").write_text(json.dumps({"text": text + "好。"}), encoding="utf-8")
    documents = refresh(settings).documents
    (folder / "a.jsonl").unlink()
    result = refresh(settings)
    assert result.documents == documents and result.removed_documents == 1
    with open_workspace(settings.workspace) as statistics:
        assert any(found.replace("\n", "") == text + "好。" for found in statistics.texts("tea"))
    assert refresh(replace(settings, corpus="again")).documents == documents
