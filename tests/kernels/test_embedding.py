"""The embedding kernels against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch

from kernels.embedding import Norm, Projection, Tables
from tests.kernels import checks
from tests.kernels.operand_checks import operands

SIZES = [(1, 16, 32), (70, 26, 65), (130, 128, 72), (0, 16, 24)]
# tokens, embedding and hidden size, layout, dtype, vocabulary, share of a frequent token, projection's bias
CASES = [
    *((*size, layout) for size in SIZES for layout in ("google", "bright", "bert")),
    *((90, 40, 72, layout, torch.float16) for layout in ("google", "bright", "bert")),
    (150, 8, 16, "google", torch.float32, 30000, 0.0), (150, 8, 16, "bright", torch.float32, 21128, 0.5),
    (150, 8, 16, "google", torch.float32, 3, 1.0, False),
    (150, 8, 16, "bright", torch.float32, 1, 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(triton, case):
    checks.embed(triton, *case)


@pytest.mark.parametrize("layout", ["google", "bright"])
def test_the_backward_pass_saves_ids_and_two_numbers_per_token(triton, layout):
    drawn, saved = operands("embed", 90, 24, torch.float32), []
    parameters = [x.requires_grad_() for x in drawn.rest]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        tables, norm = Tables(*parameters[:3]), Norm(*parameters[3:5], 1e-12)
        triton.embed(*drawn.ids, tables, norm, Projection(*parameters[5:]), layout)
    addresses = {parameter.data_ptr() for parameter in parameters}
    of_tokens = [x for x in saved if x.data_ptr() not in addresses]
    assert len(of_tokens) == 5 and all(x.shape == (90,) for x in of_tokens)
