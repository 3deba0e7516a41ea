"""The loss kernels against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.mlm_loss import CHUNK, IGNORED, backward_in_chunks, forward_in_chunks
from tests.kernels import checks
from tests.kernels.checks import DEVICE, MULTIPLIED
from tests.kernels.operand_checks import operands

# masked positions, embedding size, vocabulary, dtype, scale of the bias; wide states go through chunks
CASES = [
    (1, 16, 9001), (65, 16, 1009), (3, 26, 1), (5, 200, 513), (520, 16, 37), (3, 312, 300), (1500, 312, 300),
    (9, 32, 600, torch.float32, 20.0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_prediction_and_gradients_are_as_exact_as_torchs(either, case):
    checks.mlm_loss(either, *case)


def test_half_precision_is_no_worse_than_torchs(triton):
    checks.mlm_loss(triton, 33, 128, 1009, torch.float16)


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any operation's output."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return made


def test_chunks_bound_the_logits_of_wide_states():
    n, E, V = 5 * CHUNK, 8, 300
    states, weight, bias = torch.randn(n, E), torch.randn(V, E), torch.randn(V)
    labels = torch.randint(V, (n,))
    with LargestTensor() as largest:
        _loss, _predicted, lse = forward_in_chunks(states, weight, bias, labels)
        backward_in_chunks(torch.ones(n), states, weight, bias, labels, lse)
    assert largest.elements == CHUNK * V


@pytest.mark.parametrize("E", [16, 312])
def test_the_backward_pass_saves_no_logits(triton, E):
    drawn, saved = operands("mlm_loss", 40, E, MULTIPLIED), []
    inputs = [x.requires_grad_() for x in (*drawn.rows, *drawn.rest)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
        triton.mlm_loss(*inputs, *drawn.ids)
    assert sorted(saved) == sorted([*(x.shape for x in inputs), (40,), (40,)])


@pytest.mark.parametrize("n", [0, 4])
def test_without_a_counted_label_the_loss_and_its_gradients_are_zero(either, n):
    shapes = [(n, 16), (40, 16), (40,)]
    inputs = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    loss, predicted = either.mlm_loss(*inputs, torch.full((n,), IGNORED, device=DEVICE))
    loss.sum().backward()
    assert loss.shape == predicted.shape == (n,) and loss.eq(0).all()
    assert [x.grad.shape for x in inputs] == shapes and all(x.grad.eq(0).all() for x in inputs)


def test_an_invalid_label_gives_nan(triton):
    like = {"device": DEVICE, "dtype": MULTIPLIED}
    states, weight, bias = torch.randn(2, 16, **like), torch.randn(40, 16, **like), torch.zeros(40, **like)
    loss, _ = triton.mlm_loss(states, weight, bias, torch.tensor([40, 39], device=DEVICE))
    assert loss[0].isnan() and loss[1].isfinite()
