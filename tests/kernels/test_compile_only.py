"""The compile-only gate: a part of it, in a process without the interpreter; and that it can refuse."""

import json
import os
import subprocess
import sys

import pytest

from kernels.dispatch import has_triton
from tests import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")]


def run(code: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_kernel_compiles_for_both_architectures_without_spills_and_with_tensor_cores():
    done = run(
        "import json; from dataclasses import asdict; from benchmarks.compile_only import compile_all;"
        "print(json.dumps([asdict(row) for row in compile_all((80, 90), fast=True)]))"
    )
    assert not done.returncode, done.stderr
    rows = json.loads(done.stdout)
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_90"}
    assert len({row["kernel"] for row in rows}) == 16
    assert not [(row["kernel"], row["architecture"], row["problems"]) for row in rows if row["problems"]]
    in_16_bits = [row for row in rows if "fp32" not in row["configuration"]]
    attention = [row["result"] for row in in_16_bits if row["kernel"].startswith("attention")]
    assert all(r["dots"] and r["tensor_cores"] and r["async_copies"] for r in attention)


def test_a_launch_that_spills_or_does_not_fit_is_refused():
    done = run(
        "import sys; from unittest.mock import patch; import benchmarks.compile_only as gate;"
        "from benchmarks.recording import record, compile_for; from kernels.tuning import *;"
        "import kernels.attention; module = sys.modules['kernels.attention'];"
        "large = Launch(64, 4, 6); tiles = AttentionTiles(128, large, large, large, None)\n"
        "with patch.object(module, 'attention_tiles', lambda *a, **k: tiles), record(80) as launches:\n"
        "    gate.attention_launches(128, 512, 0.0)\n"
        "keys = [launch for launch in launches if 'keys' in launch.name][0]\n"
        "print(gate.problems(keys, 80, compile_for(keys, 80)))"
    )
    assert not done.returncode, done.stderr
    assert "registers spilled" in done.stdout and "of shared memory" in done.stdout
