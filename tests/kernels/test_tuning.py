"""The GPUs' entries of the table in the interpreter: the kernels are correct at their tiles too."""

import pytest
import torch

from kernels import tuning
from kernels.tuning import LENGTHS, AttentionTiles, Launch
from tests import ROOT
from tests.kernels import checks

GPUS = {name: tuning.table(name) for name in ("sm_80", "sm_90")}
# measured ones, of other versions of Triton too
GPUS |= {
    path.stem: GPUS[path.stem.split("-")[0]].merged(tuning.read_table(path))
    for path in (ROOT / "kernels" / "tiles").glob("*.json")
}
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes its own entries")


def entries() -> list[tuple[str, int, int, bool]]:
    """List GPU, width, bucket and dropout of the entries, without those that differ in warps only."""
    distinct = {}
    for name, table in GPUS.items():
        for key, t in table.attention.items():
            launches = (t.forward, t.queries, t.keys, t.whole)
            blocks = (t.tile, *(launch and (launch.block, launch.rows) for launch in launches))
            distinct.setdefault(blocks, (name, *key))
    return list(distinct.values())


@pytest.mark.parametrize("name, width, bucket, dropout", entries())
def test_attention_at_the_tiles_of_a_gpu(triton, monkeypatch, name, width, bucket, dropout):
    table = GPUS[name]
    monkeypatch.setattr(tuning, "table", lambda architecture: table)
    tile = table.attention[width, bucket, dropout].tile
    lengths = enumerate((40, 100, max(LENGTHS) + 6))
    same = [n for i, n in lengths if table.attention[width, i, dropout].tile == tile]
    for longest in {min(tile, same[-1]), same[-1]}:  # within a tile, then over several
        checks.attention(triton, [longest, 3], width, torch.float16, 1, 0.1 if dropout else 0.0)


@pytest.mark.parametrize("name", GPUS)
def test_the_loss_at_the_tiles_of_a_gpu(triton, monkeypatch, name):
    monkeypatch.setattr(tuning, "table", lambda architecture: GPUS[name])
    checks.mlm_loss(triton, 130, 26, 140, torch.float16)


def test_a_measured_table_replaces_the_entries_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("JIXU_TILES", str(tmp_path))  # without the table that comes with jixu
    table = tuning.table.__wrapped__  # it keeps what it has read
    built_in = table("sm_90")
    launch = Launch(32, 8, 4)
    entry = AttentionTiles(64, launch, launch, launch, None)
    measured = tuning.Table({(64, 2, False): entry}, built_in.loss)
    tuning.write_table(tmp_path / tuning.table_file("sm_90"), measured, gpu="H100")
    assert table("sm_90") == built_in.merged(measured) != built_in
