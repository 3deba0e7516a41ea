"""Bias and activation against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch

from kernels.bias_gelu import ACTIVATIONS
from tests.kernels import checks

# rows, width, dtype, scale: numbers far out neither overflow nor vanish
CASES = [
    (1, 1), (7, 312), (130, 40), (3, 1248), (0, 8), (9, 77, torch.float16), (3, 50, torch.float32, 1000.0),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(triton, activation, case):
    R, F, *rest = case
    checks.bias_gelu(triton, R, F, activation, *rest)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan_as_in_torch(triton, activation):
    x = torch.tensor([[float("nan"), 1.0]], device=checks.DEVICE)
    assert triton.bias_gelu(x, torch.zeros_like(x[0]), activation).isnan().tolist() == [[True, False]]
