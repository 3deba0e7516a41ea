"""Claims about the kernels, as functions of the package: the tests make them, and the mutation test sees each
fail when a term is taken out of a kernel.

An error is measured against double precision. The rule (FlashAttention's): at most `factor` times the error
of torch in the kernel's own dtype, and in fp32 at most 2e-6 of the largest number.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from tests.kernels.philox import kept

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORWARD, BACKWARD = 2, 3


def assert_close(name: str, got: Tensor, exact: Tensor, torchs: Tensor, factor: float) -> None:
    assert got.shape == exact.shape, name
    if not exact.numel():
        return
    assert got.isfinite().all(), f"{name}: not finite"
    error, allowed = ((x.double() - exact).abs().max().item() for x in (got, torchs))
    largest = exact.abs().max().item()
    if got.dtype == torch.float32:
        allowed = 2e-6 * max(1.0, largest)
    else:  # at least the rounding of the result itself
        allowed = max(factor * allowed, torch.finfo(got.dtype).eps / 2 * largest)
    assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def assert_gradients_close(names, got, exact, torchs) -> None:
    for name, g, e, t in zip(names, got, exact, torchs, strict=True):
        assert_close(name, g, e, t, BACKWARD)


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)


def plain_attention(qkv: Tensor, lengths: list[int], dropout_p: float = 0.0, seed: int = 0) -> Tensor:
    """Attention of packed qkv [T, 3, N, D], a sequence and a head at a time."""
    out, start = [], 0
    N, D = qkv.shape[2:]
    for length in lengths:
        q, k, v = qkv[start : start + length].permute(1, 2, 0, 3)  # each [N, L, D]
        p = torch.softmax(q @ k.transpose(1, 2) * D**-0.5, -1)
        if dropout_p:
            at = torch.arange(length).numpy()
            heads = torch.arange(N).numpy()[:, None, None]
            keep = kept(seed, dropout_p, at[None, None, :], start + at[None, :, None], heads)
            p = p * keep.to(p.device) / (1 - dropout_p)
        out.append((p @ v).transpose(0, 1))
        start += length
    return torch.cat(out)


def attention(
    package: ModuleType,
    lengths: list[int],
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    heads: int = 2,
    dropout_p: float = 0.0,
    packed: bool = True,
) -> None:
    """Output and gradients."""
    torch.manual_seed(sum(lengths))
    qkv = torch.randn(sum(lengths), 3, heads, head_dim, device=DEVICE).to(dtype)
    dout = torch.randn(sum(lengths), heads, head_dim, device=DEVICE).to(dtype)
    cu_seqlens, longest, seed = offsets(lengths), max(lengths), 2**33 + 5

    def ours(x):
        settings = {"dropout_p": dropout_p, "seed": seed}
        if packed:
            return package.attention_packed(x, cu_seqlens, longest, **settings)
        return package.attention(*x.unbind(1), cu_seqlens, longest, **settings)

    results = []
    for run, kind in (
        (ours, dtype),
        (lambda x: plain_attention(x, lengths, dropout_p, seed), torch.float64),
        (lambda x: plain_attention(x, lengths, dropout_p, seed), dtype),
    ):
        x = qkv.detach().to(kind, copy=True).requires_grad_()
        out = run(x)
        out.backward(dout.to(kind))
        results.append((out, x.grad))
    out, gradient = zip(*results, strict=True)
    assert_close("out", *out, FORWARD)
    assert_close("dqkv", *gradient, BACKWARD)


def attention_of_extreme_scores(package: ModuleType, sign: int, lengths: list[int]) -> None:
    """Scores of +-362 in every place, or of a few keys: exponentials of them overflow unless shifted."""
    qkv = torch.randn(sum(lengths), 3, 1, 32, device=DEVICE)
    qkv[:, 0], qkv[:, 1] = 8.0, 8.0 * sign
    x, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out = package.attention_packed(x, offsets(lengths), max(lengths))
    plain = plain_attention(exact, lengths)
    for y in (out, plain):
        (y * y).sum().backward()
    assert_close("out", out, plain, plain, FORWARD)
    # cancels to zero for dq and dk; what is left is rounding, 8 times the gradient of a score
    assert (x.grad - exact.grad).abs().max() < 2e-4


def attention_without_neighbours(package: ModuleType, long: bool) -> None:
    """NaN in every other sequence, forward and backward, changes no bit."""
    lengths = [70, 65, 3, 0, 20] if long else [7, 9, 3, 0, 20]
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 2, 26, device=DEVICE)
    dout = torch.randn(sum(lengths), 2, 26, device=DEVICE)
    cu_seqlens = offsets(lengths)
    for sequence, length in enumerate(lengths):
        mine = slice(int(cu_seqlens[sequence]), int(cu_seqlens[sequence]) + length)
        alone, among, dirty = (
            qkv.clone(),
            torch.full_like(qkv, float("nan")),
            torch.full_like(dout, float("nan")),
        )
        among[mine], dirty[mine] = alone[mine], dout[mine]
        results = []
        for x, d in ((alone.requires_grad_(), dout), (among.requires_grad_(), dirty)):
            out = package.attention_packed(x, cu_seqlens, max(lengths))
            out.backward(d)
            results.append((out[mine], x.grad[mine]))
        for a, b in zip(*results, strict=True):
            assert a.isfinite().all() and torch.equal(a, b), (
                f"sequence {sequence} of {lengths} saw a neighbour"
            )
