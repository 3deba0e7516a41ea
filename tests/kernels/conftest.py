"""What a kernel does not write is NaN, or a number no kernel writes; what is not its own it may not touch."""

import pytest
import torch

import kernels
from tests.kernels.addresses import watched
from tests.kernels.operand_checks import poisoned


@pytest.fixture(autouse=True)
def poison():
    with poisoned():
        yield


@pytest.fixture(autouse=True)
def addresses():
    """In the interpreter every launch is watched; a GPU has compute-sanitizer."""
    if torch.cuda.is_available() or not kernels.dispatch.has_triton:
        yield
        return
    with watched():
        yield


@pytest.fixture
def triton():
    """The package, told to run its kernels: in the interpreter where there is no GPU."""
    if not kernels.dispatch.has_triton:
        pytest.skip("triton has wheels for Linux only")
    kernels.use("triton")
    yield kernels
    kernels.use("auto")
