"""The compile-only gate in a process without the interpreter: a part of it, and that it can refuse."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from unittest.mock import patch

import pytest

from kernels import tuning
from kernels.dispatch import has_triton
from kernels.tuning import AttentionTiles, Launch

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")]


@pytest.fixture(scope="module")
def run():
    """Call a function in another process, where Triton compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield lambda function: pool.submit(function).result()


def compile_fast() -> list[dict[str, object]]:
    from benchmarks.compile_only import compile_all

    # disassembling takes longer than compiling, and has no part in the verdict
    return [asdict(row) for row in compile_all((80, 90), fast=True, disassembled=False)]


def problems_of_large_tiles() -> tuple[str, ...]:
    from benchmarks import compile_only
    from benchmarks.gpu.launches import compile_for, record

    large = Launch(64, 4, 6)
    tiles = {(128, 2, False): AttentionTiles(128, large, large, large, None)}
    table = tuning.table("sm_80")
    with patch.dict(table.attention, tiles), record(80) as launches:
        compile_only.attention_launches(128, 512, 0.0)
    (keys,) = (launch for launch in launches if "keys" in launch.name)
    return compile_only.problems(keys, 80, compile_for(keys, 80))


def test_every_kernel_compiles_for_both_architectures_without_spills_and_with_tensor_cores(run):
    rows = run(compile_fast)
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_90"}
    assert len({row["kernel"] for row in rows}) == 15
    assert not [(row["kernel"], row["architecture"], row["problems"]) for row in rows if row["problems"]]
    in_16_bits = [row for row in rows if "fp32" not in row["configuration"]]
    attention = [row["result"] for row in in_16_bits if row["kernel"].startswith("attention")]
    assert all(r["dots"] and r["tensor_cores"] and r["async_copies"] for r in attention)


def test_a_launch_that_spills_or_does_not_fit_is_refused(run):
    problems = "; ".join(run(problems_of_large_tiles))
    assert "registers spilled" in problems and "of shared memory" in problems
