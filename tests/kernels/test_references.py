"""The torch references, which are the CPU path, against plain definitions in double precision."""

import pytest
import torch

import kernels
from kernels.attention import attention_reference
from kernels.embedding import Norm, Projection, Tables
from kernels.mlm_loss import IGNORED


def packed(lengths, heads=3, dim=26, dtype=torch.float64):
    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return *(
        torch.randn(sum(lengths), heads, dim, dtype=dtype, requires_grad=True) for _ in range(3)
    ), cu_seqlens


@pytest.mark.parametrize("lengths", [[1], [5, 5, 5], [17, 0, 3, 1], [33, 2, 64]], ids=str)
def test_attention_is_softmax_within_each_sequence(lengths):
    q, k, v, cu_seqlens = packed(lengths)
    out = kernels.attention(q, k, v, cu_seqlens, max(lengths))
    expected = [
        torch.softmax(q[a:b].transpose(0, 1) @ k[a:b].permute(1, 2, 0) * 26**-0.5, -1)
        @ v[a:b].transpose(0, 1)
        for a, b in zip(cu_seqlens, cu_seqlens[1:], strict=False)
    ]
    assert torch.allclose(out, torch.cat([e.transpose(0, 1) for e in expected]), atol=1e-12)


def test_neighbouring_sequences_never_meet():
    q, k, v, cu_seqlens = packed([7, 9, 4])
    clean = kernels.attention(q, k, v, cu_seqlens, 9)[:7]
    with torch.no_grad():
        for x in (q, k, v):
            x[7:16] = float("nan")
    assert torch.equal(kernels.attention(q, k, v, cu_seqlens, 9)[:7], clean)


def test_attention_dropout_is_a_function_of_its_seed_and_keeps_the_mean():
    q, k, v, cu_seqlens = packed([40, 24])
    drawn = [kernels.attention(q, k, v, cu_seqlens, 40, dropout_p=0.3, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    many = [kernels.attention(q, k, v, cu_seqlens, 40, dropout_p=0.3, seed=seed) for seed in range(300)]
    error = torch.stack(many).mean(0) - kernels.attention(q, k, v, cu_seqlens, 40)
    assert error.abs().mean() < 0.02


def test_attention_gradients():
    q, k, v, cu_seqlens = packed([3, 0, 2], heads=2, dim=4)
    assert torch.autograd.gradcheck(lambda *x: kernels.attention(*x, cu_seqlens, 3), (q, k, v))


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("lengths", [[3, 0, 2], [3, 3]], ids=str)
def test_gradients_of_the_reference_of_attention(lengths, dropout_p):
    q, k, v, cu_seqlens = packed(lengths, heads=2, dim=4)
    assert torch.autograd.gradcheck(
        lambda *x: attention_reference(*x, cu_seqlens, 3, dropout_p=dropout_p, seed=5), (q, k, v)
    )


@pytest.mark.parametrize("layout", ["google", "bright"])
def test_embedding_adds_normalises_and_projects_in_the_layouts_order(layout):
    torch.manual_seed(0)
    E, H = 5, 8
    W = E if layout == "google" else H
    tables = Tables(*(torch.randn(n, w, dtype=torch.float64) for n, w in ((11, E), (2, W), (6, W))))
    norm = Norm(torch.randn(W, dtype=torch.float64), torch.randn(W, dtype=torch.float64), 1e-12)
    projection = Projection(torch.randn(H, E, dtype=torch.float64), torch.randn(H, dtype=torch.float64))
    ids, types, positions = torch.tensor([3, 0, 10]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 5])

    def project(x):
        return x @ projection.weight.T + projection.bias

    words = tables.word[ids] if layout == "google" else project(tables.word[ids])
    x = words + tables.token_type[types] + tables.position[positions]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    x = x * norm.weight + norm.bias
    expected = project(x) if layout == "google" else x
    assert torch.allclose(kernels.embed(ids, types, positions, tables, norm, projection, layout), expected)


def test_mlm_loss_is_cross_entropy_with_the_tied_table():
    torch.manual_seed(0)
    states, weight, bias = torch.randn(6, 4), torch.randn(13, 4), torch.randn(13)
    labels = torch.tensor([0, 12, 5, IGNORED, 7, 7])
    loss, predicted = kernels.mlm_loss(states, weight, bias, labels)
    log_p = torch.log_softmax(states.double() @ weight.double().T + bias.double(), -1)
    for row, label in enumerate(labels.tolist()):
        assert loss[row].item() == pytest.approx(
            0 if label == IGNORED else -log_p[row, label].item(), abs=1e-5
        )
    assert predicted.tolist() == log_p.argmax(-1).tolist()


def test_asking_for_triton_where_it_cannot_run_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if torch.cuda.is_available():
        return
    from kernels.dispatch import use_triton

    try:
        kernels.use("triton")
        with pytest.raises(kernels.KernelError, match="the tensors are on cpu"):
            use_triton(torch.zeros(1))
    finally:
        kernels.use("auto")
    with pytest.raises(kernels.KernelError, match="unknown kernels 'cuda'"):
        kernels.use("cuda")
