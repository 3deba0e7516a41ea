"""Which implementation runs: chosen by the environment or in the process, or refused clearly."""

import ast
import runpy

import pytest
import torch

import kernels
from kernels import dispatch
from kernels.dispatch import has_triton, use_triton
from tests import ROOT
from tests.kernels.checks import DEVICE


@pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")
def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for choice, on_cpu in (("torch", False), ("auto", False), ("triton", True)):
        monkeypatch.setenv("JIXU_KERNELS", choice)
        assert runpy.run_path(dispatch.__file__)["use_triton"](torch.zeros(1)) == on_cpu
    monkeypatch.setenv("JIXU_KERNELS", "cuda")
    with pytest.raises(RuntimeError, match="unknown kernels 'cuda'"):
        runpy.run_path(dispatch.__file__)


@pytest.mark.parametrize("version, why", [("", "is not installed"), ("3.5.1", "3.5.1 is too old")])
def test_without_a_triton_that_can_compile_them_the_kernels_say_so(monkeypatch, version, why):
    monkeypatch.setattr(dispatch, "_version", version)
    monkeypatch.setattr(dispatch, "has_triton", dispatch.missing_triton() is None)
    with pytest.raises(kernels.KernelError, match=why):
        kernels.use("triton")
    monkeypatch.setattr(dispatch, "_version", "3.10.0+git")
    assert dispatch.missing_triton() is None


def test_torch_runs_where_it_is_chosen_on_a_cpu_and_in_double_precision(triton):
    x = torch.zeros(1, device=DEVICE)
    assert use_triton(x)
    kernels.use("torch")
    assert not use_triton(x)
    kernels.use("auto")
    assert not use_triton(x.cpu()) and not use_triton(x.double())


def test_every_kernel_is_launched_on_its_tensors_device():
    """Triton launches on the current GPU, wherever the tensors are."""

    def launches(tree: ast.AST) -> list[str]:
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = [f.value.id for f in calls if isinstance(f, ast.Subscript) and hasattr(f.value, "id")]
        return [name for name in names if name.endswith("_kernel")]

    guarded, everywhere = [], []
    for path in sorted((ROOT / "kernels").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        everywhere += launches(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("on_device("):
                guarded += launches(node)
    assert everywhere and sorted(guarded) == sorted(everywhere)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_a_gpu_that_is_not_current_computes_too(triton):
    x = torch.randn(5, 40)
    on_first, on_second = (kernels.bias_gelu(x.to(f"cuda:{i}"), x[0].to(f"cuda:{i}"), "relu") for i in (0, 1))
    assert on_second.device.index == 1 and torch.equal(on_first.cpu(), on_second.cpu())
