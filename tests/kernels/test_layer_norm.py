"""The Triton kernel against double precision: on a GPU where there is one, else in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels.dispatch import has_triton
from kernels.layer_norm import _forward, add_layer_norm_reference
from tests.kernels import checks

pytestmark = pytest.mark.skipif(not has_triton, reason="triton has wheels for Linux only")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-12


@pytest.mark.parametrize("rows, hidden", [(1, 1), (3, 312), (17, 1024), (5, 769), (0, 8)], ids=str)
# fp32: sums of up to 1024 numbers; fp16 keeps 11 significant bits and bf16 8: one rounding of the result
@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float32, 1e-5), (torch.float16, 2**-9), (torch.bfloat16, 2**-6)],
    ids=["fp32", "fp16", "bf16"],
)
def test_output_and_gradients_match_double_precision(rows, hidden, dtype, tolerance):
    torch.manual_seed(0)
    shapes = [(rows, hidden), (rows, hidden), (hidden,), (hidden,)]
    args = [torch.randn(s, dtype=dtype, device=DEVICE, requires_grad=True) for s in shapes]
    exact = [a.detach().double().requires_grad_() for a in args]
    dy = torch.randn(rows, hidden, dtype=dtype, device=DEVICE)
    y, y_exact = _forward(*args, EPS)[0], add_layer_norm_reference(*exact, EPS)
    y.backward(dy)
    y_exact.backward(dy.double())
    pairs = [(y, y_exact), *((a.grad, e.grad) for a, e in zip(args, exact, strict=True))]
    for name, (got, want) in zip(["y", "dx", "dresidual", "dweight", "dbias"], pairs, strict=True):
        if hidden > 1 or name == "dbias":  # one number normalised is 0 / 0: only the bias is left
            worst = (got.double() - want).abs().max() if want.numel() else torch.tensor(0.0)
            assert worst <= tolerance * (want.abs().max().clamp_min(1.0) if want.numel() else 1.0), name


def test_a_large_mean_does_not_cost_the_variance():
    x = torch.randn(4, 312, device=DEVICE) + 1000
    zero = torch.zeros_like(x)
    one, none = torch.ones(312, device=DEVICE), torch.zeros(312, device=DEVICE)
    exact = add_layer_norm_reference(x.double(), zero.double(), one.double(), none.double(), EPS)
    assert (_forward(x, zero, one, none, EPS)[0] - exact).abs().max() < 1e-3


def test_a_row_of_nan_stays_in_its_row():
    x, residual = torch.randn(3, 24, device=DEVICE), torch.randn(3, 24, device=DEVICE)
    x[1] = float("nan")
    y = _forward(x, residual, torch.ones(24, device=DEVICE), torch.zeros(24, device=DEVICE), EPS)[0]
    assert y[[0, 2]].isfinite().all() and y[1].isnan().all()


def test_the_operator_is_what_torch_asks_of_one():
    args = [torch.randn(s, device=DEVICE, requires_grad=True) for s in [(5, 12), (5, 12), (12,), (12,)]]
    torch.library.opcheck(_forward, (*args, EPS))


def test_the_door_takes_triton_when_told_to(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.randn(3, 20, device=DEVICE).t().contiguous().t()  # strided
    residual, weight, bias = torch.randn(3, 20, device=DEVICE), torch.randn(20), torch.randn(20)
    weight, bias = weight.to(DEVICE), bias.to(DEVICE)
    try:
        kernels.use("torch")
        expected = kernels.add_layer_norm(x, residual, weight, bias)
        kernels.use("triton")
        assert (kernels.add_layer_norm(x, residual, weight, bias) - expected).abs().max() < 1e-5
    finally:
        kernels.use("auto")


@pytest.mark.parametrize("rows, hidden", [(1, 16), (5, 312), (33, 40), (3, 2048)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_fp32_within_2e_6_with_and_without_dropout(triton, rows, hidden, dropout_p):
    checks.add_layer_norm(triton, rows, hidden, dropout_p=dropout_p)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_half_precision_is_no_worse_than_torchs(triton, dropout_p):
    checks.add_layer_norm(triton, 9, 312, torch.float16, dropout_p)


def test_many_rows_are_shared_by_a_fixed_number_of_programs(triton, monkeypatch):
    monkeypatch.setattr("kernels.layer_norm._PROGRAMS", 3)
    checks.add_layer_norm(triton, 50, 512)


def test_dropout_without_a_seed_follows_torchs_generator(triton):
    x, residual = torch.randn(4, 24, device=DEVICE), torch.zeros(4, 24, device=DEVICE)
    weight, bias = torch.ones(24, device=DEVICE), torch.zeros(24, device=DEVICE)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(triton.add_layer_norm(x, residual, weight, bias, dropout_p=0.4))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_reference_gradients():
    torch.manual_seed(0)
    inputs = [torch.randn(s).double().requires_grad_() for s in [(3, 5), (3, 5), (5,), (5,)]]
    assert torch.autograd.gradcheck(lambda *a: add_layer_norm_reference(*a, 1e-5), inputs)


@settings(max_examples=10)
@given(rows=st.integers(1, 40), hidden=st.integers(8, 900), dropout_p=st.sampled_from([0.0, 0.3]))
def test_any_shape(rows, hidden, dropout_p):
    try:
        kernels.use("triton")
        checks.add_layer_norm(kernels, rows, hidden, dropout_p=dropout_p)
    finally:
        kernels.use("auto")
