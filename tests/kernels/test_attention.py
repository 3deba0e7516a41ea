"""The attention kernels against double precision: on a GPU where there is one, else in the interpreter."""

import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from kernels import tuning
from kernels.attention import attention_reference, schedule_tiles
from tests.kernels import checks
from tests.kernels.checks import DEVICE, MULTIPLIED, offsets

attention_module = sys.modules["kernels.attention"]
HALF = torch.float16
# lengths, head dim, dtype, heads, dropout
CASES = [
    ([1], 26), ([6, 6, 6], 26), ([5, 0, 64, 33], 28), ([5, 0, 64, 33], 32), ([1, 0, 17, 130, 64, 65], 26),
    ([1, 0, 17, 130, 64, 65], 64), ([3, 70], 160), ([513, 1, 128, 31, 2], 32, torch.float32, 1),
    ([9, 10, 8], 26, HALF), ([5, 0, 64, 33], 26, HALF), ([5, 0, 64, 33], 64, HALF),
    ([1, 30, 7], 26, MULTIPLIED, 2, 0.1), ([70, 3], 26, MULTIPLIED, 2, 0.6),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(either, case):
    checks.attention(either, *case)


def test_a_shape_whose_table_says_so_runs_flash_attention_where_that_can(triton, monkeypatch):
    qkv, cu_seqlens = torch.randn(40, 3, 2, 32, device=DEVICE, dtype=MULTIPLIED), offsets([40])
    name = tuning.architecture(qkv.device)
    table = tuning.table(name)
    faster = tuning.Table({key: replace(entry, flash=True) for key, entry in table.attention.items()})
    monkeypatch.setattr(tuning, "table", lambda name: table.merged(faster))
    ran = []
    monkeypatch.setattr(attention_module, "_on_torch", lambda *arguments: ran.append(arguments))
    for takes in (False, True):
        monkeypatch.setattr(attention_module, "_takes_flash", lambda *arguments, takes=takes: takes)
        triton.attention(qkv, cu_seqlens, 40)
        assert len(ran) == takes


def test_flash_attention_gets_heads_of_up_to_256_numbers(monkeypatch):
    monkeypatch.setattr(attention_module, "runs_kernels", lambda device: True)
    with FakeTensorMode():
        heads = [torch.empty(9, 3, 1, D, device="cuda", dtype=HALF) for D in (256, 264, 28)]
    takes = [attention_module._takes_flash(qkv, qkv.shape[3] ** -0.5, 0.0) for qkv in heads]
    assert takes == [True, False, False]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]], ids=str)
def test_nothing_in_nothing_out(either, lengths):
    qkv = torch.randn(0, 3, 2, 32, device=DEVICE, dtype=MULTIPLIED, requires_grad=True)
    either.attention(qkv, offsets(lengths), 0).sum().backward()
    assert qkv.grad.shape == qkv.shape


@settings(deadline=None)  # the first example begins the GPU
@given(lengths=st.lists(st.integers(0, 300), max_size=12), tile=st.sampled_from([16, 64, 128]))
def test_the_schedule_covers_every_tile_once_longest_sequence_first(lengths, tile):
    schedule = schedule_tiles(offsets(lengths), sum(lengths), tile).tolist()
    real = [tuple(row) for row in schedule if row[0] >= 0]
    expected = {(s, t) for s, length in enumerate(lengths) for t in range(-(-length // tile))}
    assert set(real) == expected and len(real) == len(expected)
    order = [lengths[s] for s, _ in real]
    assert order == sorted(order, reverse=True)
    assert len(schedule) == sum(lengths) // tile + len(lengths)


def test_a_scale_dropout_or_dtype_that_cannot_work_is_an_error(triton):
    qkv = torch.zeros(2, 3, 1, 16, device=DEVICE)
    with pytest.raises(kernels.KernelError, match="dropout_p=1.0"):
        triton.attention(qkv, offsets([2]), 2, dropout_p=1.0)
    with pytest.raises(kernels.KernelError, match="scale=-0.5 is not above 0"):
        triton.attention(qkv, offsets([2]), 2, scale=-0.5)
    with pytest.raises(kernels.KernelError, match="float64"):
        triton.attention(qkv.double(), offsets([2]), 2)


@pytest.mark.parametrize("lengths", [[1], [5, 5, 5], [17, 0, 3, 1], [33, 2, 64]], ids=str)
def test_the_reference_is_softmax_within_each_sequence(lengths):
    qkv = torch.randn(sum(lengths), 3, 3, 26, dtype=torch.float64, device=DEVICE)
    out = attention_reference(*qkv.unbind(1), offsets(lengths), max(lengths))
    assert torch.allclose(out, checks.plain_attention(qkv, lengths), atol=1e-12)
