"""What the tests of the operators do not see of their CPU paths: pieces, groups, rounding, shared weights."""

from functools import partial

import pytest
import torch
from torch.nn.functional import gelu

import kernels
from kernels import gelu_cpu
from kernels.attention_cpu import GROUP_SCORES, group_sequences
from kernels.gelu_cpu import gelu_on_cpu
from tests.kernels import checks

LENGTHS = [
    [1], [6, 6, 6], [9, 10, 8], [3, 0, 40, 2, 0], [300, 30, 300, 290, 31, 29], [5] * 200,
    [130] * 20 + [7] * 100,
]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_groups_hold_every_token_once_and_little_padding(lengths):
    total = sum(lengths)
    groups = group_sequences(checks.offsets(lengths).cpu(), torch.empty(0))
    out = torch.full((total, 2), -1.0)
    padding = 0
    for group in groups:
        x = torch.arange(2.0 * total).view(total, 2)
        read = group.read(x)
        zeroed = group.read_or_zero(x)
        assert read.shape == zeroed.shape == (group.sequences * group.length, 2)
        group.write(out, zeroed.view(group.sequences, group.length, 2))
        assert group.sequences == 1 or group.sequences * group.length**2 <= GROUP_SCORES
        padding += group.sequences * group.length
    assert torch.equal(out, torch.arange(2.0 * total).view(total, 2))
    # a group accepts shorter sequences only while it holds few tokens
    assert padding <= 1.25 * total + 512 * max(lengths) / max(1, min(n for n in lengths if n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelus_error_is_at_most_twice_torchs(dtype, monkeypatch):
    monkeypatch.setattr(gelu_cpu, "PIECE_NUMBERS", 12_000)  # several pieces, the last one smaller
    values = torch.cat([torch.linspace(-12, 12, 39_960, dtype=torch.float64), torch.linspace(-60, 60, 40)])
    values = values.view(-1, 40).to(dtype)
    torchs, ones = partial(gelu, approximate="tanh"), torch.ones_like(values)
    exact, theirs, ours = (
        checks.gradients_of(function, [values], kind, ones)
        for function, kind in ((torchs, torch.float64), (torchs, dtype), (gelu_on_cpu, dtype))
    )
    for got, other, want in zip(ours, theirs, exact, strict=True):
        error, allowed = ((x.double() - want).abs().max() for x in (got, other))
        assert error <= 2 * allowed + torch.finfo(dtype).eps


def test_the_first_of_equal_logits_is_predicted_and_a_very_unlikely_label_has_a_finite_loss():
    checks.mlm_loss_of_equal_logits(kernels, 600, 300.0)
    states, weight, labels = torch.tensor([[300.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([1])
    assert kernels.mlm_loss(states, weight, torch.zeros(2), labels)[0].item() == 600


@pytest.mark.parametrize("long", [False, True])
def test_neighbouring_sequences_never_meet(long):
    checks.attention_without_neighbours(kernels, long)


def test_gradients_of_a_shared_weight_add_up_in_fp32():
    torch.manual_seed(0)
    weight, bias = torch.randn(8, 16, requires_grad=True), torch.randn(8, requires_grad=True)
    xs, dys = torch.randn(40, 5, 16).bfloat16(), torch.randn(40, 5, 8).bfloat16()
    exact = [torch.einsum("ltf,lth->fh", dys.double(), xs.double()), dys.double().sum((0, 1))]

    def errors(linear) -> list[float]:
        with torch.autocast("cpu", torch.bfloat16), kernels.copied_once([weight, bias]):
            ys = torch.stack([linear(x, weight, bias) for x in xs])
        gradients = torch.autograd.grad(ys, [weight, bias], dys)
        return [float((g - e).norm()) for g, e in zip(gradients, exact, strict=True)]

    ours, theirs = errors(kernels.linear), errors(torch.nn.functional.linear)
    assert all(a < b / 3 for a, b in zip(ours, theirs, strict=True))


def test_a_residuals_gradient_is_added_with_no_more_error_than_by_autograd():
    torch.manual_seed(0)
    weight = torch.randn(8, 16, requires_grad=True)
    x = torch.randn(40, 16).bfloat16().requires_grad_()
    dy, dresidual = torch.randn(40, 8).bfloat16(), torch.randn(40, 16).bfloat16()
    exact = dy.double() @ weight.detach().bfloat16().double() + dresidual.double()

    def error(project) -> float:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = project(x, weight, None)
        gradient = torch.autograd.grad(outputs, x, (dy, dresidual.clone()))[0]
        return float((gradient.double() - exact).norm())

    theirs = error(lambda x, weight, bias: (kernels.linear(x, weight, bias), x.view_as(x)))
    assert 0 < error(kernels.linear_and_residual) <= theirs
