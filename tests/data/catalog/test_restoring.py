import json
from dataclasses import replace

import pytest

from data.catalog import CatalogLost, compact, examine, open_workspace, restore
from data.workspace import Workspace
from tests.corpora import refresh_here, refresh_settings


@pytest.fixture
def settings(tmp_path, vocabulary_file):
    """A corpus of two versions and a compacted one."""
    source = tmp_path / "tea.jsonl"
    settings = refresh_settings(tmp_path / "w", source, vocabulary_file)
    for texts in (["绿茶不发酵。红茶全发酵。"], ["绿茶不发酵。红茶全发酵。", "山泉水最好。井水次之。"]):
        source.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
        refresh_here(settings)
    assert compact(Workspace(settings.workspace), "tea")
    return settings


def content(workspace):
    names = ("corpora", "versions", "sources", "shards", "version_shards", "funnel", "documents", "instances")
    with open_workspace(workspace) as statistics:
        return {name: sorted(map(str, statistics.sql(f"from {name}").fetchall())) for name in names}


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_a_lost_catalog_is_restored_with_every_version(settings, damage):
    workspace = Workspace(settings.workspace)
    before = content(workspace.root)
    if damage == "deleted":
        workspace.catalog.unlink()
    else:
        size = workspace.catalog.stat().st_size
        with workspace.catalog.open("r+b") as file:
            file.seek(4096 * 3)
            file.write(b"\xff" * (size - 4096 * 6))
    files = sorted(workspace.root.glob("*/tea/*"))
    for reader in (examine, lambda workspace: refresh_here(settings)):
        with pytest.raises(CatalogLost, match="jixu doctor --fix restores it"):
            reader(workspace)
    assert sorted(workspace.root.glob("*/tea/*")) == files
    assert restore(workspace) == ["tea version 3", "tea version 2", "tea version 1"]
    assert content(workspace.root) == before and len(before["versions"]) == 3
    assert not refresh_here(settings).is_new and not examine(workspace).damaged


def test_a_version_without_its_files_is_left_out(settings):
    workspace = Workspace(settings.workspace)
    refresh_here(replace(settings, corpus="water"))
    next(workspace.shards("water").glob("*.parquet")).unlink()
    workspace.catalog.unlink()
    assert restore(workspace) == ["tea version 3", "tea version 2", "tea version 1"]
