"""What a kernel does not write is NaN, or a number no kernel writes; what is not its own it may not touch."""

import pytest
import torch

import kernels
from tests.kernels.addresses import watched


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    def poison(real):
        def allocate(*args, **kwargs):
            x = real(*args, **kwargs)
            return x.fill_(float("nan") if x.is_floating_point() else -7) if type(x) is torch.Tensor else x

        return allocate

    for name in ("empty_like", "empty"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))


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
