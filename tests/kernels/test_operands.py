"""Operands anywhere in memory: on a GPU where there is one, else in the interpreter."""

import pytest
import torch

from tests.kernels import operand_checks


@pytest.mark.parametrize("operator", list(operand_checks.CALLS))
def test_strided_operands_give_the_same_bits(either, operator):
    operand_checks.strided(either, operator)


@pytest.mark.parametrize("operator", list(operand_checks.CALLS))
def test_the_last_tokens_are_as_without_the_others(triton, operator):
    operand_checks.far(triton, operator, 150, 48, torch.float16)
