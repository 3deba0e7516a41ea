"""Bias and activation against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.bias_gelu import ACTIVATIONS, bias_gelu_reference
from tests.kernels import checks
from tests.kernels.checks import DEVICE
from tests.kernels.conftest import ANY_SHAPE


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("R, F", [(1, 1), (7, 312), (130, 40), (3, 1248)], ids=str)
def test_output_and_gradients_match_double_precision(triton, activation, R, F):
    checks.bias_gelu(triton, R, F, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_half_precision_is_no_worse_than_torchs(triton, activation):
    checks.bias_gelu(triton, 9, 77, activation, torch.float16)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numbers_far_out_neither_overflow_nor_vanish(triton, activation):
    checks.bias_gelu(triton, 3, 50, activation, scale=1000.0)


@ANY_SHAPE
@given(R=st.integers(1, 150), F=st.integers(1, 400), activation=st.sampled_from(ACTIVATIONS))
def test_any_shape(triton, R, F, activation):
    checks.bias_gelu(triton, R, F, activation)


def test_no_rows(triton):
    x, bias = (torch.zeros(s, device=DEVICE, requires_grad=True) for s in [(0, 8), (8,)])
    triton.bias_gelu(x, bias, "gelu").sum().backward()
    assert bias.grad.eq(0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_gelu_is_the_linear_map_first(triton, activation):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(s, device=DEVICE) for s in [(5, 12), (20, 12), (20,)])
    expected = bias_gelu_reference(x @ weight.T, bias, activation)
    assert (triton.linear_gelu(x, weight, bias, activation)[0] - expected).abs().max() < 1e-5
    triton.use("torch")
    assert (triton.linear_gelu(x, weight, bias, activation)[0] - expected).abs().max() < 1e-5
