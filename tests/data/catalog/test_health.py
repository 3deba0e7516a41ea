import os
import shutil
from dataclasses import replace

import pytest

from data.catalog import (
    CatalogLost,
    checking,
    collect_garbage,
    end_killed_run,
    examine,
    mark_for_rebuilding,
    open_workspace,
    restore,
    write_catalog,
)
from data.errors import InputError
from data.workspace import Workspace
from tests.corpora import Corpus, refresh_settings, shards_of, write_jsonl


@pytest.fixture(scope="module")
def made(tmp_path_factory, vocabulary_file):
    """Two corpora of one short document each."""
    folder, corpora = tmp_path_factory.mktemp("health"), []
    for corpus, text in (("茶", "绿茶不发酵。红茶全发酵。"), ("水", "山泉水最好。井水次之。")):
        source = folder / f"{corpus}.jsonl"
        write_jsonl(source, text)
        corpora.append(Corpus(refresh_settings(folder / "w", source, vocabulary_file, corpus=corpus)))
        corpora[-1].refresh()
    return corpora


@pytest.fixture
def corpora(made, tmp_path):
    """The same in a copy of the workspace."""
    shutil.copytree(made[0].root, tmp_path / "w")
    return [corpus.changed(workspace=tmp_path / "w") for corpus in made]


def test_a_shard_is_compared_again_only_where_its_size_or_time_changed(corpora):
    workspace = corpora[0].place
    shards = [shard for name in ("茶", "水") for shard in shards_of(workspace.root, name)]
    paths = [workspace.root / shard.path for shard in shards]
    with checking(workspace, paths) as check:
        check()
    before = paths[0].stat()
    with paths[0].open("r+b") as file:
        file.write(b"J")
    os.utime(paths[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    with checking(workspace, paths):
        pass
    os.utime(paths[0])
    with checking(workspace, paths[1:]):
        pass
    message = "is not as it was committed: run jixu doctor --fix"
    with pytest.raises(InputError, match=message), checking(workspace, paths):
        pass
    corpora[0].refresh(seed=1)
    collect_garbage(workspace, keep=1)
    with pytest.raises(InputError, match="removed meanwhile"), checking(workspace, paths):
        pass


@pytest.mark.parametrize("file", ["list of documents", "shard", "documents"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_lost_file_that_a_refresh_needs_is_told_and_made_again_after_doctors_mark(file, damage, corpora):
    (tea, water), workspace = corpora, corpora[0].place
    more = workspace.root.parent / "more.jsonl"
    write_jsonl(more, "乌龙茶半发酵。白茶微发酵。")
    (shard,) = shards_of(tea.root, "茶")
    (index,) = workspace.documents("茶").glob("index-*")
    names = {"list of documents": index, "shard": shard.path, "documents": shard.documents_path}
    path = workspace.root / names[file]
    path.unlink() if damage == "gone" else os.truncate(path, path.stat().st_size // 2)
    (found,) = examine(workspace).damaged
    assert found.path == workspace.relative(path) and found.is_gone == (damage == "gone")
    assert found.corpus == "茶" and found.is_current
    tea = tea.changed(source=(*tea.settings.source, str(more)))
    with pytest.raises(InputError, match="茶/.* is gone or damaged .*run jixu doctor --fix"):
        tea.refresh()
    mark_for_rebuilding(workspace, "茶")
    assert not water.refresh().is_new
    rebuilt = tea.refresh()
    assert rebuilt.documents == 2 and rebuilt.anew == "files were damaged"
    # that of the version before, until it is collected
    assert examine(workspace).damaged == (replace(found, is_current=False),)


def test_a_source_is_read_again_where_what_was_read_of_it_has_changed_on_disk(corpora):
    tea, workspace = corpora[0], corpora[0].place
    used = "from documents where corpus = '茶' and dropped_stage is null"
    query = f"select doc_id, source_uri, first_version {used} order by all"
    before = tea.ask(query)
    (path,) = workspace.root.glob("documents/茶/listing-*")
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(byte ^ 255 for byte in content[60:90])
    path.write_bytes(content)
    (found,) = examine(workspace).damaged
    assert found.path == workspace.relative(path)
    tea.refresh()
    assert tea.ask(query) == before
    assert not examine(workspace).damaged


def rows_of(workspace):
    names = ("corpora", "versions", "sources", "shards", "version_shards", "funnel", "documents", "instances")
    with open_workspace(workspace) as statistics:
        return {name: sorted(map(str, statistics.sql(f"from {name}").fetchall())) for name in names}


@pytest.mark.parametrize("damage", ["deleted", "overwritten", "emptied", "cut"])
def test_a_lost_catalog_is_restored_as_its_last_writer_left_it(corpora, damage):
    (tea, water), workspace = corpora, corpora[0].place
    tea.refresh(seed=1)
    before = rows_of(workspace.root)
    content, edge = bytearray(workspace.catalog.read_bytes()), 3 * 4096
    content[edge:-edge] = b"\xff" * (len(content) - 2 * edge)
    kept = {"overwritten": content, "emptied": b"", "cut": content[:5000]}
    workspace.catalog.write_bytes(kept[damage]) if damage in kept else workspace.catalog.unlink()
    files = sorted(workspace.root.glob("*/茶/*"))
    # a writer would put what is lost in place of the copy
    for job in (
        *(examine, lambda _: tea.refresh(), lambda place: end_killed_run(place, "r")),
        lambda _: tea.plan(corpus="new"),  # refused before its sources are read
    ):
        with pytest.raises(CatalogLost, match="jixu doctor --fix restores it"):
            job(workspace)
    assert sorted(workspace.root.glob("*/茶/*")) == files
    assert restore(workspace) == ["水 version 1", "茶 version 2"]
    assert rows_of(workspace.root) == before and len(before["versions"]) == 3
    assert not water.refresh().is_new and not examine(workspace).damaged
    workspace.catalog.write_bytes(b"damaged")
    os.truncate(workspace.catalog_copy, 20000)
    for state in ("damaged", "gone"):
        with pytest.raises(InputError, match=f"is {state} too: refresh the corpora into a new workspace"):
            restore(workspace)
        assert workspace.catalog.read_bytes() == b"damaged"
        workspace.catalog_copy.unlink(missing_ok=True)


def test_damage_that_a_writer_does_not_meet_is_not_copied(tmp_path):
    workspace = Workspace(tmp_path)
    with write_catalog(workspace) as db:
        rows = "select 'c', 1, 0, md5(range::varchar), 'u', 0, 0, null, 0 from range(20000)"
        db.execute(f"insert into funnel {rows}")
    whole = workspace.catalog_copy.read_bytes()
    middle = len(whole) // 2
    workspace.catalog.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(CatalogLost, match="is damaged"):
        end_killed_run(workspace, "r")
    assert workspace.catalog_copy.read_bytes() == whole
