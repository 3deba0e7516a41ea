"""Which implementation runs: chosen from outside, in the process, and refused clearly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels.dispatch import compute_dtype, has_triton, use_triton

ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """A fresh process without the interpreter."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True
    )


def test_the_environment_chooses():
    code = "import kernels.dispatch as d; print(d._choice)"
    assert run(code, JIXU_KERNELS="torch").stdout == "torch\n"
    assert run(code).stdout == "auto\n"
    assert "unknown kernels 'cuda'" in run(code, JIXU_KERNELS="cuda").stderr


@pytest.mark.skipif(not has_triton or torch.cuda.is_available(), reason="Triton without a GPU")
def test_an_operator_asked_to_run_triton_on_a_cpu_says_what_to_do():
    code = (
        "import torch, kernels; q = torch.zeros(1, 1, 16); cu = torch.tensor([0, 1], dtype=torch.int32)\n"
        "try: kernels.attention(q, q, q, cu, 1)\n"
        "except kernels.KernelError as error: print(error)"
    )
    done = run(code, JIXU_KERNELS="triton")
    assert "the tensors are on cpu: move them to a GPU" in done.stdout, done.stderr


def test_auto_stays_with_torch_on_a_cpu_and_for_double_precision():
    assert not use_triton(torch.zeros(1))
    assert not use_triton(torch.zeros(1, dtype=torch.float64))
    try:
        kernels.use("torch")
        assert not use_triton(torch.zeros(1))
    finally:
        kernels.use("auto")


def test_compute_dtype_is_autocasts():
    x = torch.zeros(1)
    assert compute_dtype(x) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(x) == torch.bfloat16
