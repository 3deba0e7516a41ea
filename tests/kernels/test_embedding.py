"""The embedding kernels against double precision: on a GPU where there is one, else in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels.embedding import Norm, Projection, Tables, embed_reference, scatter_rows
from tests.kernels import checks, operand_checks
from tests.kernels.checks import DEVICE

LAYOUTS = ("google", "bright", "bert")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("T, E, H", [(1, 16, 32), (70, 26, 65), (200, 128, 312)], ids=str)
def test_output_and_gradients_match_double_precision(triton, layout, T, E, H):
    checks.embed(triton, T, E, H, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_is_no_worse_than_torchs(triton, layout):
    checks.embed(triton, 90, 40, 72, layout, torch.float16)


def test_tables_wider_than_one_pass_holds(triton):
    checks.embed(triton, 20, 300, 40, "google")


@pytest.mark.parametrize("layout", ["google", "bright"])
def test_the_backward_pass_is_kept_ids_and_two_numbers_of_each_token(triton, layout):
    T, V, E, H = 90, 50, 16, 24
    W = H if layout == "bright" else E
    shapes = [(V, E), (2, W), (37, W), (W,), (W,), (H, E), (H,)]
    parameters = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    ids = torch.arange(T, device=DEVICE) % 2
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        tables, norm = Tables(*parameters[:3]), Norm(*parameters[3:5], 1e-12)
        triton.embed(ids, ids, ids, tables, norm, Projection(*parameters[5:]), layout)
    addresses = {parameter.data_ptr() for parameter in parameters}
    of_tokens = [x for x in kept if x.data_ptr() not in addresses]
    assert len(of_tokens) == 5 and all(x.shape == (T,) for x in of_tokens)


@pytest.mark.parametrize("layout", ["google", "bright"])
def test_projection_without_a_bias(triton, layout):
    checks.embed(triton, 9, 16, 24, layout, bias=False)


@settings(max_examples=8)
@given(T=st.integers(1, 150), E=st.integers(8, 140), H=st.integers(8, 200), layout=st.sampled_from(LAYOUTS))
def test_any_shape(T, E, H, layout):
    try:
        kernels.use("triton")
        checks.embed(kernels, T, E, H, layout)
    finally:
        kernels.use("auto")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tokens(triton, layout):
    checks.embed(triton, 0, 16, 24, layout)


@pytest.mark.parametrize("V, hot", [(30000, 0.0), (21128, 0.5), (3, 1.0), (1, 1.0)])
def test_rare_and_frequent_tokens(triton, V, hot):
    checks.embed(triton, 150, 8, 16, "google", V=V, hot=hot)


@settings(max_examples=40)
@given(
    runs=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 100)), max_size=6),
    width=st.sampled_from([1, 16, 130]),
)
def test_the_scatter_sums_rows_by_id_whatever_the_runs(runs, width):
    ids = torch.tensor([i for i, length in runs for _ in range(length)], dtype=torch.int64, device=DEVICE)
    ids = ids[torch.randperm(len(ids), device=DEVICE)]
    x = torch.randn(len(ids), width, device=DEVICE)
    expected = torch.zeros(10, width, dtype=torch.float64, device=DEVICE).index_add_(0, ids, x.double())
    got = scatter_rows(x, ids, 10)
    assert (got - expected).abs().max() < 2e-5  # sums of up to 1152 numbers
    assert torch.equal(got, scatter_rows(x, ids, 10))


def test_a_token_of_very_many_rows_among_rare_ones():
    operand_checks.scatter_of_one_id(kernels)


def test_a_nan_row_stays_in_its_slice_of_the_scatter():
    operand_checks.scatter_without_neighbours(kernels)


def test_many_rows_are_shared_by_a_fixed_number_of_programs(triton, monkeypatch):
    monkeypatch.setattr("kernels.embedding._PROGRAMS", 3)
    checks.embed(triton, 150, 128, 40, "google")


def test_nan_in_a_row_of_a_table_or_the_projection_stays_with_it(triton):
    checks.embed_without_neighbours(triton)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reference_gradients(layout):
    checks_of = {"google": (3, 4), "bright": (4, 4), "bert": (3, 3)}
    W, H = checks_of[layout]
    torch.manual_seed(0)
    shapes = [(5, 3), (2, W), (4, W), (W,), (W,), (H, 3), (H,)]
    inputs = [torch.randn(s).double().requires_grad_() for s in shapes[: 5 if layout == "bert" else 7]]
    ids, types, positions = torch.tensor([4, 0, 4]), torch.tensor([0, 1, 1]), torch.arange(3)

    def run(word, token_type, position, weight, bias, *projection):
        last = Projection(*projection) if projection else None
        order = "bright" if layout == "bright" else "google"
        tables, norm = Tables(word, token_type, position), Norm(weight, bias, 1e-5)
        return embed_reference(ids, types, positions, tables, norm, last, order)

    assert torch.autograd.gradcheck(run, inputs)
