"""The watch over addresses: no two writes of one address; test_mutations.py has those outside of tensors."""

import pytest
import torch

from kernels.dispatch import has_triton, tl, triton
from tests.kernels.addresses import watched

pytestmark = pytest.mark.skipif(not has_triton or torch.cuda.is_available(), reason="for the interpreter")


@triton.jit
def shift_kernel(y_ptr, x_ptr, STEP: tl.constexpr, SAME: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, 4)
    tl.store(y_ptr + at, tl.load(x_ptr + at) + tl.program_id(0) * (1 - SAME))


@triton.jit
def fold_kernel(y_ptr, x_ptr):
    at = tl.arange(0, 4)
    tl.store(y_ptr + at // 2, tl.load(x_ptr + at))


def test_two_programs_may_write_an_address_only_if_they_write_the_same_and_one_store_may_not_twice():
    x, y = torch.arange(8.0), torch.zeros(8)
    with watched():
        shift_kernel[(2,)](y, x, 4, False)
        assert y.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
        shift_kernel[(2,)](y, x, 2, True)
        with pytest.raises(AssertionError, match="two programs write an address"):
            shift_kernel[(2,)](y, x, 2, False)
        with pytest.raises(Exception, match="one store writes an address twice"):
            fold_kernel[(1,)](torch.zeros(2), torch.arange(4.0))
