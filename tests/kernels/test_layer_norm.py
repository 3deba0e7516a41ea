"""The Triton kernel against double precision: on a GPU where there is one, else in Triton's interpreter."""

import pytest
import torch

from kernels.layer_norm import add_layer_norm_reference
from tests.kernels import checks
from tests.kernels.checks import DEVICE

# rows, hidden, dtype, dropout; the interpreter cuts bf16 off, where a GPU and torch round: that costs it up
# to twice torch's error
CASES = [
    (1, 1), (0, 8, torch.float32, 0.1), (1, 16, torch.float32, 0.1), (3, 312), (5, 769, torch.float32, 0.1),
    (33, 40), (3, 2048, torch.float32, 0.1), (9, 312, torch.float16, 0.5), (17, 1024, torch.float16),
    (17, 1024, torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(triton, case, biased):
    checks.add_layer_norm(triton, *case, biased=biased, numbered=biased)


def test_a_large_mean_does_not_cost_the_variance(triton):
    x = torch.randn(4, 312, device=DEVICE) + 1000
    zero = torch.zeros_like(x)
    exact = add_layer_norm_reference(*(y.double() for y in (x, zero, zero[0] + 1, zero[0])), 1e-12)
    assert (triton.add_layer_norm(x, zero, zero[0] + 1, zero[0]) - exact).abs().max() < 1e-3
