"""The kernels' work that `benchmarks.gpu` measures, and its rivals. T = packed tokens, H = width, E =
embedding size, V = vocabulary, n = masked positions.

FLOPs count the true head dim, real tokens and masked positions only, backward as 2.5 times forward for
attention (five products for two) and twice for the rest; bytes count each input read once and each output
written once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels
from benchmarks.gpu.attention import attention_cases
from benchmarks.gpu.scale import EVALUATED, Scale, compiled_or_why
from benchmarks.gpu.timing import Case, Run, attempt, forward_backward
from kernels.bias_gelu import bias_gelu_reference
from kernels.embedding import Norm, Projection, Tables, embed_reference
from kernels.layer_norm import add_layer_norm_reference
from kernels.mlm_loss import CHUNK, backward_in_chunks, forward_in_chunks, mlm_loss_reference


def loss_cases(scale: Scale) -> Iterator[Case]:
    n, E, V = scale.masked, 128, scale.vocabulary
    for backward in (False, True):
        yield Case(
            f"mlm_loss n={n} E={E} V={V} {'both passes' if backward else 'forward'}",
            lambda b=backward: _loss(scale, n, E, V, b),
            flops=2 * n * E * V * (3 if backward else 1),
            bytes=(n * E + V * E) * 2 * (3 if backward else 1),
        )


def _loss(scale: Scale, n: int, E: int, V: int, backward: bool) -> dict[str, Run | str]:
    states = torch.randn(n, E, device=scale.device, dtype=scale.dtype, requires_grad=backward)
    weight = (torch.randn(V, E, device=scale.device) * E**-0.5).to(scale.dtype).requires_grad_(backward)
    bias = torch.zeros(V, device=scale.device, dtype=scale.dtype, requires_grad=backward)
    labels = torch.randint(V, (n,), device=scale.device)
    inputs = [states, weight, bias]

    def both(forward: Callable[[], Tensor]) -> Run:
        return forward_backward(forward, inputs) if backward else forward

    def chunked() -> Tensor:
        parts = zip(states.split(CHUNK), labels.split(CHUNK), strict=True)
        return torch.cat(
            [F.cross_entropy(F.linear(x, weight, bias).float(), y, reduction="none") for x, y in parts]
        )

    reference = lambda: mlm_loss_reference(*inputs, labels)[0]  # noqa: E731
    compiled = compiled_or_why(reference, scale.device, backward)
    return {
        "jixu": both(lambda: kernels.mlm_loss(*inputs, labels)[0]),
        "torch eager": both(reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
        "chunks of 1024 rows": both(chunked),
        "chunks, logits recomputed": _chunks_again(states, weight, bias, labels, backward),
        "Liger-Kernel": attempt(_liger, inputs, labels, both),
    }


def _chunks_again(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, backward: bool) -> Run:
    """Run cuBLAS and torch's softmax on so few rows that their logits stay in the L2 cache."""
    dloss = torch.ones(states.shape[0], device=states.device)

    @torch.no_grad()
    def run() -> None:
        _loss, _predicted, lse = forward_in_chunks(states, weight, bias, labels)
        if backward:
            backward_in_chunks(dloss, states, weight, bias, labels, lse)

    return run


def _liger(inputs: list[Tensor], labels: Tensor, both: Callable[[Callable[[], Tensor]], Run]) -> Run | str:
    if importlib.util.find_spec("liger_kernel") is None:
        return "not installed"
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    states, weight, bias = inputs
    liger = LigerFusedLinearCrossEntropyLoss()
    return both(lambda: liger(weight, states, labels, bias))


def embedding_cases(scale: Scale) -> Iterator[Case]:
    for model, (_N, _D, H) in EVALUATED.items():
        for layout in ("google", "bright"):
            for backward in (False, True):
                size, E = 2 * scale.tokens, 128
                yield Case(
                    f"embed {model} {layout} {'both passes' if backward else 'forward'}",
                    lambda a=(H, layout), b=backward: _embedding(scale, *a, b),
                    flops=size * E * H * (3 if backward else 1),
                    bytes=scale.tokens * 24 + size * H * (2 if backward else 1) + 2 * scale.vocabulary * E,
                )


def _embedding(scale: Scale, H: int, layout: str, backward: bool) -> dict[str, Run | str]:
    device, T, E, V = scale.device, scale.tokens, 128, scale.vocabulary
    W = H if layout == "bright" else E
    inputs = [
        torch.randn(s, device=device, dtype=scale.dtype, requires_grad=backward)
        for s in [(V, E), (2, W), (512, W), (W,), (W,), (H, E), (H,)]
    ]
    # Zipf's ranks and a twelfth [MASK]: the backward scatter must not serialise on these
    ranks = (torch.rand(T, device=device) * torch.tensor(float(V)).log()).exp().long().clamp_max(V - 1)
    ids = torch.where(torch.rand(T, device=device) < 0.12, 4, ranks)
    places, types = torch.arange(T, device=device) % 512, torch.arange(T, device=device) // 64 % 2
    norm = Norm(inputs[3], inputs[4], 1e-12)
    arguments = (ids, types, places, Tables(*inputs[:3]), norm, Projection(*inputs[5:]), layout)

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(*arguments)  # noqa: E731
        return forward_backward(forward, inputs) if backward else forward

    compiled = compiled_or_why(embed_reference, device, backward)
    return {
        "jixu": both(kernels.embed),
        "torch eager": both(embed_reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
    }


def row_cases(scale: Scale) -> Iterator[Case]:
    for model, (_N, _D, H) in EVALUATED.items():
        size = scale.tokens * H * 2
        for backward in (False, True):
            passes = "both passes" if backward else "forward"
            yield Case(
                f"add_layer_norm {model} {passes}",
                lambda a=(H,), b=backward: _rows(scale, *a, b),
                bytes=size * (7 if backward else 3),
            )
            yield Case(
                f"bias_gelu {model} {passes}",
                lambda a=(4 * H,), b=backward: _activation(scale, *a, b),
                bytes=4 * size * (5 if backward else 2),
            )


def _rows(scale: Scale, H: int, backward: bool) -> dict[str, Run | str]:
    inputs = [
        torch.randn(s, device=scale.device, dtype=scale.dtype, requires_grad=backward)
        for s in [(scale.tokens, H), (scale.tokens, H), (H,), (H,)]
    ]

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(*inputs, 1e-12)  # noqa: E731
        return forward_backward(forward, inputs) if backward else forward

    compiled = compiled_or_why(add_layer_norm_reference, scale.device, backward)
    return {
        "jixu": both(kernels.add_layer_norm),
        "torch eager": both(add_layer_norm_reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
    }


def _activation(scale: Scale, width: int, backward: bool) -> dict[str, Run | str]:
    x = torch.randn(scale.tokens, width, device=scale.device, dtype=scale.dtype, requires_grad=backward)
    bias = torch.randn(width, device=scale.device, dtype=scale.dtype, requires_grad=backward)

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(x, bias, "gelu_new")  # noqa: E731
        return forward_backward(forward, [x, bias]) if backward else forward

    compiled = compiled_or_why(bias_gelu_reference, scale.device, backward)
    return {
        "jixu": both(kernels.bias_gelu),
        "torch eager": both(bias_gelu_reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
    }


def kernel_cases(scale: Scale) -> list[Case]:
    """Yield every case but whole models."""
    cases = [*attention_cases(scale), *loss_cases(scale), *embedding_cases(scale), *row_cases(scale)]
    return [replace(case, of_kernels=True) for case in cases]
