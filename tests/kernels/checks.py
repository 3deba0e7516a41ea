"""Claims about the kernels, as functions of the package; mutated kernels must fail them.

Errors are measured against double precision. As in FlashAttention's tests they are at most `factor` times
torch's error in the kernel's own dtype; in fp32 2e-6 of the largest number, on a GPU the larger of both.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from kernels.bias_gelu import bias_gelu_reference
from kernels.dropout import keep_reference, row_keys_reference
from kernels.embedding import Norm, Projection, Tables, embed_reference
from kernels.layer_norm import add_layer_norm_reference
from kernels.mlm_loss import mlm_loss_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# what the kernels multiply: on a GPU torch computes fp32, with a dropout of its own and other errors
MULTIPLIED = torch.float16 if DEVICE == "cuda" else torch.float32
FORWARD, BACKWARD = 2, 3  # allowed errors relative to torch's
SEED = torch.tensor([2**61 + 2**33 + 2**31 + 5])


def assert_close(name: str, got: Tensor, exact: Tensor, torchs: Tensor, factor: float) -> None:
    assert got.shape == exact.shape, name
    if not exact.numel():
        return
    assert got.isfinite().all(), f"{name}: not finite"
    error, allowed = ((x.double() - exact).abs().max().item() for x in (got, torchs))
    largest = exact.abs().max().item()
    if got.dtype == torch.float32:
        floor = 2e-6 * max(1.0, largest)
    else:  # one rounding of the result
        floor = torch.finfo(got.dtype).eps / 2 * largest
    strict = got.dtype == torch.float32 and DEVICE == "cpu"
    allowed = floor if strict else max(factor * allowed, floor)
    assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)


def plain_attention(qkv: Tensor, lengths: list[int], dropout_p: float = 0.0) -> Tensor:
    """Compute attention of packed qkv [T, 3, N, D] one sequence at a time."""
    out, start = [], 0
    N, D = qkv.shape[2:]
    for length in lengths:
        q, k, v = qkv[start : start + length].permute(1, 2, 0, 3)  # each [N, L, D]
        p = torch.softmax(q @ k.transpose(1, 2) * D**-0.5, -1)
        if dropout_p:
            token, head = (torch.arange(n, device=qkv.device) for n in (length, N))
            keys = row_keys_reference(SEED.to(DEVICE), (start + token) * N + head[:, None])
            p = p * keep_reference(keys, length, dropout_p) / (1 - dropout_p)
        out.append((p @ v).transpose(0, 1))
        start += length
    return torch.cat(out)


def attention(
    package: ModuleType, lengths: list[int], head_dim: int, dtype: torch.dtype = torch.float32,
    heads: int = 2, dropout_p: float = 0.0,
) -> None:  # fmt: skip
    """Check output and gradients."""
    torch.manual_seed(sum(lengths))
    qkv = torch.randn(sum(lengths), 3, heads, head_dim, device=DEVICE).to(dtype)
    dout = torch.randn(sum(lengths), heads, head_dim, device=DEVICE).to(dtype)
    cu_seqlens, longest, seed = offsets(lengths), max(lengths), SEED.to(DEVICE)
    compare(
        lambda x: package.attention(x, cu_seqlens, longest, dropout_p=dropout_p, seed=seed),
        lambda x: plain_attention(x, lengths, dropout_p),
        [qkv], dtype, dout, "out dqkv",
    )  # fmt: skip


def attention_of_extreme_scores(
    package: ModuleType, sign: int, lengths: list[int], dtype: torch.dtype = torch.float32
) -> None:
    """Check equal scores of +-362, whose exponentials overflow unless shifted."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 1, 32, device=DEVICE).to(dtype)
    qkv[:, 0], qkv[:, 1] = 8.0, 8.0 * sign
    x, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out = package.attention(x, offsets(lengths), max(lengths))
    plain = plain_attention(exact, lengths)
    for y in (out, plain):
        (y * y).sum().backward()
    assert_close("out", out, plain, plain, FORWARD)
    # the logsumexp of 522 bits and the probabilities have an error of 2**-15; queries and keys are 8
    allowed = 1e-3 + 4 * torch.finfo(dtype).eps * exact.grad.abs().max()
    assert (x.grad - exact.grad).abs().max() < allowed


def attention_without_neighbours(package: ModuleType, long: bool, dtype: torch.dtype = torch.float32) -> None:
    """Check that NaN in all other sequences changes no bit in either pass."""
    lengths = [70, 3, 0, 65] if long else [7, 3, 0, 20]
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 1, 26, device=DEVICE).to(dtype)
    dout = torch.randn(sum(lengths), 1, 26, device=DEVICE).to(dtype)
    cu_seqlens = offsets(lengths)
    for sequence, length in enumerate(lengths):
        mine = slice(int(cu_seqlens[sequence]), int(cu_seqlens[sequence]) + length)
        alone, among, dirty = qkv.clone(), qkv * float("nan"), dout * float("nan")
        among[mine], dirty[mine] = alone[mine], dout[mine]
        results = []
        for x, d in ((alone.requires_grad_(), dout), (among.requires_grad_(), dirty)):
            out = package.attention(x, cu_seqlens, max(lengths))
            out.backward(d)
            results.append((out[mine], x.grad[mine]))
        for a, b in zip(*results, strict=True):
            assert a.isfinite().all() and torch.equal(a, b), f"sequence {sequence} saw a neighbour"


def mlm_loss(
    package: ModuleType, n: int, E: int, V: int, dtype: torch.dtype = torch.float32,
    bias_scale: float = 1.0,
) -> None:  # fmt: skip
    """Check loss, prediction and gradients with a fifth of the labels ignored."""
    torch.manual_seed(n + V)
    inputs = [torch.randn(shape, device=DEVICE) for shape in ((n, E), (V, E), (V,))]
    inputs[1] *= E**-0.5
    inputs[2] *= bias_scale
    labels = torch.randint(V, (n,), device=DEVICE)
    if n:
        labels[-1] = V - 1
    labels[1::5] = -100
    dloss = torch.rand(n, device=DEVICE)
    outputs = []

    def run(function):
        def call(*x):
            outputs.append(function(*x, labels))
            return outputs[-1][0]

        return call

    names = "loss dstates dweight dbias"
    compare(run(package.mlm_loss), run(mlm_loss_reference), inputs, dtype, dloss, names)
    (loss, predicted), (_, exact), _ = outputs
    assert loss.dtype == torch.float32 and predicted.dtype == torch.int64 and not loss[1::5].any()
    assert dtype != torch.float32 or torch.equal(predicted, exact)


def mlm_loss_of_equal_logits(
    package: ModuleType, V: int, value: float, dtype: torch.dtype = torch.float32
) -> None:
    """Check equal logits of any size: the loss is log(V), the prediction the first token."""
    states, weight = torch.zeros(3, 16, device=DEVICE), torch.randn(V, 16, device=DEVICE)
    states, weight = states.to(dtype).requires_grad_(), weight.to(dtype)
    bias = torch.full((V,), value, device=DEVICE, dtype=dtype, requires_grad=True)
    labels = torch.tensor([0, V - 1, -100], device=DEVICE)
    loss, predicted = package.mlm_loss(states, weight, bias, labels)
    loss.sum().backward()
    # the logits are only exact to their last bit
    expected = torch.tensor([1.0, 1.0, 0.0], device=DEVICE) * torch.tensor(V).log()
    assert (loss - expected).abs().max() < 1e-5 + abs(value) * 2e-7
    assert predicted.tolist() == [0, 0, 0]
    dbias = torch.full((V,), 2 / V, device=DEVICE)
    dbias[0] -= 1
    dbias[-1] -= 1
    rounding = 0 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert (bias.grad - dbias).abs().max() < 1e-6 + abs(value) * 2e-7 + rounding
    assert states.grad[2].eq(0).all()


def gradients_of(run, inputs: list[Tensor], dtype: torch.dtype, dy: Tensor) -> tuple[Tensor, ...]:
    """Return `run`'s output for copies of the inputs in a dtype, and their gradients."""
    x = [i.detach().to(dtype, copy=True).requires_grad_() for i in inputs]
    y = run(*x)
    y.backward(dy.to(y.dtype))
    return y, *(i.grad for i in x)


def compare(run, reference, inputs: list[Tensor], dtype: torch.dtype, dy: Tensor, names: str) -> None:
    """Check output and gradients of `run` in a dtype against the reference in it and in double precision."""
    inputs, dy = [i.to(dtype) for i in inputs], dy.to(dtype)
    ways = ((run, dtype), (reference, torch.float64), (reference, dtype))
    results = [gradients_of(way, inputs, kind, dy) for way, kind in ways]
    assert results[0][0].dtype == results[2][0].dtype
    for i, (name, numbers) in enumerate(zip(names.split(), zip(*results, strict=True), strict=True)):
        assert_close(name, *numbers, BACKWARD if i else FORWARD)


def add_layer_norm(
    package: ModuleType, R: int, H: int, dtype: torch.dtype = torch.float32, dropout_p: float = 0.0,
    biased: bool = True, numbered: bool = False,
) -> None:  # fmt: skip
    """Check output and gradients, also without the bias of the linear map before, or with rows' numbers.

    A row of one number has no gradient; a fused multiply-add makes it a rounding error / sqrt(eps).
    """
    torch.manual_seed(R + H)
    shapes = [(R, H), (R, H), (H,), (H,), *([(H,)] if biased else [])]
    inputs = [torch.randn(s, device=DEVICE) for s in shapes]
    rows = torch.randperm(3 * R, device=DEVICE)[:R] if numbered else None
    settings = {"dropout_p": dropout_p, "seed": SEED.to(DEVICE), "rows": rows}
    eps = 1e-5 if H > 1 else 1e-2

    def reference(x, residual, weight, bias, x_bias=0.0):
        return add_layer_norm_reference(x + x_bias, residual, weight, bias, eps, **settings)

    compare(
        lambda *a: package.add_layer_norm(*a[:4], eps, **settings, x_bias=a[4] if biased else None),
        reference, inputs, dtype, torch.randn(R, H, device=DEVICE),
        "y dx dresidual dweight dbias" + " dx_bias" * biased,
    )  # fmt: skip


def bias_gelu(
    package: ModuleType, R: int, F: int, activation: str, dtype: torch.dtype = torch.float32,
    scale: float = 2.0,
) -> None:  # fmt: skip
    torch.manual_seed(R + F)
    inputs = [torch.randn(R, F, device=DEVICE) * scale, torch.randn(F, device=DEVICE)]
    compare(
        lambda x, b: package.bias_gelu(x, b, activation),
        lambda x, b: bias_gelu_reference(x, b, activation),
        inputs, dtype, torch.randn(R, F, device=DEVICE), "y dx dbias",
    )  # fmt: skip


def embed(
    package: ModuleType, T: int, E: int, H: int, layout: str, dtype: torch.dtype = torch.float32, V: int = 50,
    hot: float = 0.3, bias: bool = True,
) -> None:  # fmt: skip
    """Check output and gradients; bert is google without a projection; a `hot` share of ids is equal."""
    torch.manual_seed(T + E)
    W = H if layout == "bright" else E
    ids = torch.randint(V, (T,), device=DEVICE)
    ids[torch.rand(T, device=DEVICE) < hot] = V - 1
    types, positions = torch.randint(2, (T,), device=DEVICE), torch.arange(T, device=DEVICE) % 37
    shapes = [(V, E), (2, W), (37, W), (W,), (W,)]
    if layout != "bert":
        shapes += [(H, E), (H,)] if bias else [(H, E)]
    inputs = [torch.randn(s, device=DEVICE) for s in shapes]
    if layout != "bert":
        inputs[5] *= E**-0.5

    def run(function):
        def call(word, token_type, position, weight, shift, *projection):
            tables, norm = Tables(word, token_type, position), Norm(weight, shift, 1e-5)
            last = Projection(projection[0], projection[1] if bias else None) if projection else None
            order = "bright" if layout == "bright" else "google"
            return function(ids, types, positions, tables, norm, last, order)

        return call

    names = "y dword dtype dposition dweight dbias dprojection dprojection_bias"
    names = " ".join(names.split()[: 1 + len(inputs)])
    dy = torch.randn(T, E if layout == "bert" else H, device=DEVICE)
    compare(run(package.embed), run(embed_reference), inputs, dtype, dy, names)


def mlm_loss_of_dirty_padding(package: ModuleType, dtype: torch.dtype = torch.float32) -> None:
    """Check that places past the end of states and labels count for nothing, whatever the bias."""
    states = torch.randn(3, 16, device=DEVICE, dtype=dtype, requires_grad=True)
    weight = torch.randn(40, 16, device=DEVICE, dtype=dtype, requires_grad=True)
    bias = torch.full((40,), 200.0, device=DEVICE, dtype=dtype, requires_grad=True)
    labels = torch.tensor([1, 39, 0], device=DEVICE)
    package.mlm_loss(states, weight, bias, labels)[0].sum().backward()
    for x in (states, weight, bias):
        assert x.grad.isfinite().all()


def embed_without_neighbours(package: ModuleType, dtype: torch.dtype = torch.float32) -> None:
    """Check that a NaN row spoils only its tokens (of the word table) or column (of the projection)."""
    torch.manual_seed(0)
    ids = torch.arange(5, device=DEVICE)
    for layout, W in (("google", 26), ("bright", 8)):
        shapes = [(5, 26), (2, W), (9, W), (8, 26)]
        word, kind, place, weight = (torch.randn(s, device=DEVICE, dtype=dtype) for s in shapes)
        ones = torch.ones(2, W, device=DEVICE, dtype=dtype)
        tables, norm = Tables(word, kind, place), Norm(*ones, 1e-5)
        clean = package.embed(ids, ids % 2, ids, tables, norm, Projection(weight, None), layout)
        word[3] = float("nan")
        y = package.embed(ids, ids % 2, ids, tables, norm, Projection(weight, None), layout)
        assert y[3].isnan().all() and torch.equal(y[[0, 1, 2, 4]], clean[[0, 1, 2, 4]]), layout
        if layout == "google":
            weight[3] = float("nan")
            y = package.embed(ids[:3], ids[:3] % 2, ids[:3], tables, norm, Projection(weight, None))
            assert y[:, 3].isnan().all() and y[:, [0, 1, 2, 4, 5, 6, 7]].isfinite().all()
