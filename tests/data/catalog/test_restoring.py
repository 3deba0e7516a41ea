from dataclasses import replace

import pytest

from data.catalog import (
    CatalogLost,
    CheckpointRow,
    compact,
    examine,
    open_workspace,
    record_evaluations,
    record_run,
    restore,
)
from data.workspace import Workspace
from tests.corpora import refresh_here, refresh_settings, write_jsonl


@pytest.fixture
def settings(tmp_path, vocabulary_file):
    """A corpus of two versions and a compacted one, a run with a checkpoint that is there, and scores."""
    source = tmp_path / "tea.jsonl"
    settings = refresh_settings(tmp_path / "w", source, vocabulary_file)
    for texts in (["绿茶不发酵。红茶全发酵。"], ["绿茶不发酵。红茶全发酵。", "山泉水最好。井水次之。"]):
        write_jsonl(source, *texts)
        refresh_here(settings)
    place = Workspace(settings.workspace)
    assert compact(place, "tea")
    (place.model("r") / "checkpoint-2").mkdir(parents=True)
    checkpoint = CheckpointRow(2, "models/r/checkpoint-2", "0", 0.5)
    figures = {"steps": 2, "tokens": 9, "metrics": {"step": 2, "茶": 1e-5}, "checkpoints": [checkpoint]}
    known = {"corpus": "tea", "version": 2, "init": "tiny", "settings": {"seed": 1}, "status": "completed"}
    record_run(place, run="r", **known, **figures)
    score = {"task": "茶", "model": "r", "seed": 1, "learning_rate": 1e-5, "best_epoch": 1, "split": "dev"}
    record_evaluations(place, "e", [score | {"metric": "f1", "score": 1 / 3, "seconds": 0.1}])
    return settings


def content(workspace):
    names = ("corpora", "versions", "sources", "shards", "version_shards", "funnel", "documents", "instances")
    names += ("pretraining_runs", "checkpoints", "evaluations")
    with open_workspace(workspace) as statistics:
        return {name: sorted(map(str, statistics.sql(f"from {name}").fetchall())) for name in names}


RESTORED = ["tea version 3", "tea version 2", "tea version 1", "run e", "run r"]


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_a_lost_catalog_is_restored_with_every_version_and_run(settings, damage):
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
    assert restore(workspace) == RESTORED
    assert content(workspace.root) == before and len(before["versions"]) == 3
    assert not refresh_here(settings).is_new and not examine(workspace).damaged


def test_versions_and_checkpoints_without_their_files_are_left_out(settings):
    workspace = Workspace(settings.workspace)
    (workspace.model("r") / "checkpoint-2").rmdir()
    refresh_here(replace(settings, corpus="water"))
    next(workspace.shards("water").glob("*.parquet")).unlink()
    before = content(workspace.root)["corpora"]
    workspace.catalog.unlink()
    assert restore(workspace) == RESTORED
    # a lost corpus keeps its share of never-trained documents, and can be made again
    assert content(workspace.root)["corpora"] == before and len(before) == 2
    assert refresh_here(replace(settings, corpus="water")).version == 1
    assert (
        len(content(workspace.root)["pretraining_runs"]) == 1 and not content(workspace.root)["checkpoints"]
    )
