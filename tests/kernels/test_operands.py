"""Operands of any shape and anywhere in memory: on a GPU where there is one, else in the interpreter."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.bias_gelu import ACTIVATIONS
from tests.kernels import checks, operand_checks

ANY_SHAPE = {
    checks.attention: {
        "lengths": st.lists(st.integers(0, 90), min_size=1, max_size=3),
        "head_dim": st.sampled_from([8, 16, 26, 40]),
        "heads": st.integers(1, 3),
    },
    checks.mlm_loss: {"n": st.integers(0, 70), "E": st.integers(1, 140), "V": st.integers(1, 700)},
    checks.add_layer_norm: {
        "R": st.integers(1, 40), "H": st.integers(8, 900), "dropout_p": st.sampled_from([0.0, 0.3]),
    },
    checks.bias_gelu: {
        "R": st.integers(1, 150), "F": st.integers(1, 400), "activation": st.sampled_from(ACTIVATIONS),
    },
    checks.embed: {
        "T": st.integers(1, 100), "E": st.integers(8, 140), "H": st.integers(8, 80),
        "layout": st.sampled_from(["google", "bright", "bert"]),
    },
}  # fmt: skip


@pytest.mark.parametrize("check", ANY_SHAPE, ids=lambda check: check.__name__)
# the fixture `triton` is the same for every example; a GPU compiles each and reads no profile of all tests
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_output_and_gradients_of_any_shape_are_as_exact_as_torchs(triton, check, data):
    check(triton, **{name: data.draw(any_of) for name, any_of in ANY_SHAPE[check].items()})


@pytest.mark.parametrize("operator", list(operand_checks.CALLS))
def test_strided_operands_give_the_same_bits(either, operator):
    operand_checks.strided(either, operator)


@pytest.mark.parametrize("operator", ["add_layer_norm", "bias_gelu", "mlm_loss"])
def test_a_row_of_nan_stays_in_its_row(triton, operator):
    operand_checks.rows_without_neighbours(triton, operator)


def test_a_second_derivative_is_refused(either):
    x = torch.randn(5, 40, device=checks.DEVICE, requires_grad=True)
    y = either.bias_gelu(x, x[0], "gelu_new").square().sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("operator", list(operand_checks.CALLS))
def test_the_last_tokens_are_as_without_the_others(triton, operator):
    operand_checks.far(triton, operator, 150, 48, torch.float16)
