"""Bias and activation against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.bias_gelu import ACTIVATIONS
from tests.kernels import checks
from tests.kernels.conftest import ANY_SHAPE

# rows, width, dtype, scale: numbers far out neither overflow nor vanish
CASES = [
    (1, 1), (7, 312), (130, 40), (3, 1248), (0, 8), (9, 77, torch.float16), (3, 50, torch.float32, 1000.0),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(triton, activation, case):
    R, F, *rest = case
    checks.bias_gelu(triton, R, F, activation, *rest)


@ANY_SHAPE
@given(R=st.integers(1, 150), F=st.integers(1, 400), activation=st.sampled_from(ACTIVATIONS))
def test_any_shape(triton, R, F, activation):
    checks.bias_gelu(triton, R, F, activation)
