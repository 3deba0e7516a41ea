"""Which implementation runs: chosen from outside, in the process, and refused clearly."""

import ast
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

import kernels
from kernels.dispatch import compute_dtype, has_triton, on_device, use_triton
from tests import ROOT


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


def test_every_kernel_is_launched_on_its_tensors_device():
    """With several GPUs Triton launches on the current one, whichever holds the tensors."""

    def launches(tree: ast.AST) -> list[str]:
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        kernels_by_grid = [
            f.value.id for f in calls if isinstance(f, ast.Subscript) and hasattr(f.value, "id")
        ]
        return [name for name in kernels_by_grid if name.endswith("_kernel")]

    guarded, everywhere = [], []
    for path in sorted((ROOT / "kernels").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        everywhere += launches(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("on_device("):
                guarded += launches(node)
    assert everywhere and sorted(guarded) == sorted(everywhere)


def test_a_cpu_has_no_device_to_make_current():
    assert on_device(torch.zeros(1)) is on_device(torch.zeros(2))
    assert isinstance(on_device(torch.zeros(1)), nullcontext)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_the_gpu_that_is_not_current_computes_too(triton):
    x = torch.randn(5, 40)
    on_first, on_second = (kernels.bias_gelu(x.to(f"cuda:{i}"), x[0].to(f"cuda:{i}"), "relu") for i in (0, 1))
    assert on_second.device.index == 1 and torch.equal(on_first.cpu(), on_second.cpu())
