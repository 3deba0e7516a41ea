"""The watch over addresses: a kernel that leaves its tensors is caught, wherever it lands."""

import pytest
import torch

from kernels.dispatch import has_triton, tl, triton
from tests.kernels.addresses import watched

pytestmark = pytest.mark.skipif(
    not has_triton or torch.cuda.is_available(), reason="for Triton's interpreter"
)


@triton.jit
def copy_kernel(y_ptr, x_ptr, n, READ: tl.constexpr, WRITTEN: tl.constexpr):
    at = tl.arange(0, 16)
    x = tl.load(x_ptr + at, mask=at < n + READ, other=0.0)
    tl.store(y_ptr + at, x, mask=at < n + WRITTEN)


@pytest.mark.parametrize("read, written", [(1, 0), (0, 1), (-11, 0)], ids=["read", "write", "neither"])
def test_a_number_too_many_is_an_error(read, written):
    # both lie within a larger storage: only the tensors themselves may be touched
    x, y = torch.arange(60.0).view(2, 30)[:, :10]
    with watched():
        if read < 0:
            copy_kernel[(1,)](y, x, 10, read, written)
            assert y.eq(0).all()
        else:
            with pytest.raises(Exception, match="outside of its tensors"):
                copy_kernel[(1,)](y, x, 10, read, written)
            assert y[0] == 30
