"""Unwritten output holds NaN, or a number no kernel writes; kernels may touch nothing but their tensors.

These tests also run on a GPU machine that has torch, Triton, numpy, pytest and hypothesis alone:
`python -m pytest --confcutdir tests/kernels tests/kernels`, without the conftest of all tests.
"""

from contextlib import nullcontext

import pytest
import torch

import kernels
from tests.kernels.addresses import watched
from tests.kernels.operand_checks import poisoned


@pytest.fixture(autouse=True)
def memory():
    """Poison new tensors and watch every launch in the interpreter; a GPU has compute-sanitizer."""
    is_interpreted = kernels.dispatch.has_triton and not torch.cuda.is_available()
    with poisoned(), watched() if is_interpreted else nullcontext():
        yield


# of a GPU torch is the reference
@pytest.fixture(params=["triton"] if torch.cuda.is_available() else ["triton", "torch"])
def either(request, monkeypatch):
    """Return the package with its kernels in use, then with what computes the same on a CPU by itself.

    That computes the loss in pieces, here in many: of few rows, and two pieces a product.
    """
    if request.param == "triton":
        yield request.getfixturevalue("triton")
        return
    monkeypatch.setattr("kernels.mlm_loss_cpu.PIECE_NUMBERS", 4096)
    monkeypatch.setattr("kernels.mlm_loss_cpu.PIECES", 2)
    kernels.use("torch")
    yield kernels
    kernels.use("auto")


@pytest.fixture
def triton():
    """Return the package with its kernels in use: in the interpreter where there is no GPU."""
    if not kernels.dispatch.has_triton:
        pytest.skip("triton has wheels for Linux only")
    kernels.use("triton")
    yield kernels
    kernels.use("auto")
