"""The kernels' work that `benchmarks.gpu` measures, and its rivals. T = packed tokens, H = width, E =
embedding size, V = vocabulary, n = masked positions.

Every case is both passes. FLOPs count the true head dim, real tokens and masked positions only, backward as
2.5 times forward for attention (five products for two) and twice for the rest; bytes count each input read
once and each output written once in either pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels
from benchmarks.gpu.attention import attention_cases
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import Case, Run, passes, rival
from kernels.bias_gelu import bias_gelu_reference
from kernels.embedding import Norm, Projection, Tables, embed_reference
from kernels.layer_norm import add_layer_norm_reference
from kernels.mlm_loss import CHUNK, mlm_loss_reference

WIDTHS = {"tiny": 312, "base": 768, "large": 1024}


def beside_torch(
    ours: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: list[Tensor], *arguments: object
) -> dict[str, Run | str]:
    """Run an operator beside its reference, eager and compiled; the inputs are among the arguments."""
    compiled: Run | str = "torch.compile is for the GPU"
    if inputs[0].is_cuda:
        function = torch.compile(reference)
        compiled = passes(lambda: function(*arguments), inputs)
    return {
        "jixu": passes(lambda: ours(*arguments), inputs),
        "torch eager": passes(lambda: reference(*arguments), inputs),
        "torch.compile": compiled,
    }


def _random(scale: Scale, *shapes: tuple[int, ...]) -> list[Tensor]:
    like = {"device": scale.device, "dtype": scale.dtype, "requires_grad": True}
    return [torch.randn(shape, **like) for shape in shapes]


def loss_case(scale: Scale) -> Case:
    n, E, V = scale.masked, 128, scale.vocabulary
    return Case(
        f"mlm_loss n={n} E={E} V={V} both passes",
        partial(_loss, scale, n, E, V),
        flops=6 * n * E * V,
        bytes=6 * (n * E + V * E),
    )


def _loss(scale: Scale, n: int, E: int, V: int) -> dict[str, Run | str]:
    like = {"device": scale.device, "dtype": scale.dtype}
    inputs = [torch.randn(n, E, **like), torch.randn(V, E, **like) * E**-0.5, torch.zeros(V, **like)]
    for x in inputs:
        x.requires_grad_()
    labels = torch.randint(V, (n,), device=scale.device)

    def chunked() -> Tensor:
        parts = zip(inputs[0].split(CHUNK), labels.split(CHUNK), strict=True)
        logits = ((F.linear(x, *inputs[1:]).float(), y) for x, y in parts)
        return torch.cat([F.cross_entropy(z, y, reduction="none") for z, y in logits])

    return {
        **beside_torch(
            lambda *given: kernels.mlm_loss(*given)[0],
            lambda *given: mlm_loss_reference(*given)[0],
            inputs,
            *inputs,
            labels,
        ),
        "chunks of 1024 rows": passes(chunked, inputs),
        "Liger-Kernel": rival("liger_kernel", _liger, inputs, labels),
    }


def _liger(inputs: list[Tensor], labels: Tensor) -> Run:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    states, weight, bias = inputs
    liger = LigerFusedLinearCrossEntropyLoss()
    return passes(lambda: liger(weight, states, labels, bias), inputs)


def embedding_cases(scale: Scale) -> Iterator[Case]:
    for (model, H), layout in product(WIDTHS.items(), ("google", "bright")):
        size, E = 2 * scale.tokens, 128
        yield Case(
            f"embed {model} {layout} both passes",
            partial(_embedding, scale, H, layout),
            flops=3 * size * E * H,
            bytes=48 * scale.tokens + 2 * size * H + 6 * scale.vocabulary * E,
        )


def _embedding(scale: Scale, H: int, layout: str) -> dict[str, Run | str]:
    device, T, E, V = scale.device, scale.tokens, 128, scale.vocabulary
    W = H if layout == "bright" else E
    inputs = _random(scale, (V, E), (2, W), (512, W), (W,), (W,), (H, E), (H,))
    # Zipf's ranks and a twelfth [MASK]: the backward scatter must not serialise on these
    ranks = (torch.rand(T, device=device) * torch.tensor(float(V)).log()).exp().long().clamp_max(V - 1)
    ids = torch.where(torch.rand(T, device=device) < 0.12, 4, ranks)
    places, types = torch.arange(T, device=device) % 512, torch.arange(T, device=device) // 64 % 2
    weights = (Tables(*inputs[:3]), Norm(*inputs[3:5], 1e-12), Projection(*inputs[5:]))
    return beside_torch(kernels.embed, embed_reference, inputs, ids, types, places, *weights, layout)


def row_cases(scale: Scale) -> Iterator[Case]:
    for model, H in WIDTHS.items():
        size = scale.tokens * H * 2
        yield Case(f"add_layer_norm {model} both passes", partial(_rows, scale, H), bytes=7 * size)
        yield Case(f"bias_gelu {model} both passes", partial(_activation, scale, 4 * H), bytes=20 * size)


def _rows(scale: Scale, H: int) -> dict[str, Run | str]:
    inputs = _random(scale, (scale.tokens, H), (scale.tokens, H), (H,), (H,))
    return beside_torch(kernels.add_layer_norm, add_layer_norm_reference, inputs, *inputs, 1e-12)


def _activation(scale: Scale, width: int) -> dict[str, Run | str]:
    inputs = _random(scale, (scale.tokens, width), (width,))
    return beside_torch(kernels.bias_gelu, bias_gelu_reference, inputs, *inputs, "gelu_new")


def kernel_cases(scale: Scale) -> list[Case]:
    """List every case but whole models."""
    cases = [*attention_cases(scale), loss_case(scale), *embedding_cases(scale), *row_cases(scale)]
    return [replace(case, of_kernels=True) for case in cases]
