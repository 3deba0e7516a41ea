"""The work `benchmarks.gpu` measures, and its rivals. T = packed tokens, S = sequences, N = heads, D = head
dim.

FLOPs count the true head dim, real tokens and masked positions only, backward as 2.5 times forward for
attention (five products for two) and twice for the rest; bytes count each input read once and each output
written once.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels
from benchmarks.measure import Case, Run, forward_backward
from kernels.attention import attention_reference
from kernels.bias_gelu import bias_gelu_reference
from kernels.embedding import Norm, Projection, Tables, embed_reference
from kernels.layer_norm import add_layer_norm_reference
from kernels.mlm_loss import mlm_loss_reference

EVALUATED = {"tiny": (12, 26, 312), "base": (12, 64, 768), "large": (16, 64, 1024)}  # heads, head dim, width
COMPILED = (
    "base"  # what torch.compile and FlexAttention take part in: compiling takes the time measuring needs
)


@dataclass(frozen=True)
class Scale:
    """How much work: the real sizes on a GPU, small ones where the code is only tried."""

    device: str = "cuda"
    tokens: int = 65536
    vocabulary: int = 21128

    @property
    def masked(self) -> int:
        return int(0.15 * self.tokens)

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32


def lengths_of(mix: str, longest: int, tokens: int) -> list[int]:
    """Lengths that fill a batch: all the longest ("full"), or as BERT's recipe makes them, nine in ten within
    a tenth of the longest and the tenth anywhere ("mixed"; Devlin et al. 2019's create_pretraining_data, 10%
    short).
    """
    if mix == "full":
        return [longest] * (tokens // longest)
    rng, lengths = random.Random(0), []
    while sum(lengths) < tokens:
        short = rng.random() < 0.1
        lengths.append(rng.randint(5, longest) if short else rng.randint(longest * 9 // 10, longest))
    lengths[-1] -= sum(lengths) - tokens
    return lengths


def offsets(lengths: list[int], device: str) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


def _compiled(function: Callable, device: str, model: str = COMPILED) -> Callable | str:
    if device != "cuda":
        return "torch.compile is for the GPU"
    return torch.compile(function) if model == COMPILED else f"compiled for {COMPILED} only"


def attention_cases(scale: Scale) -> Iterator[Case]:
    for model, (N, D, _H) in EVALUATED.items():
        for longest in (128, 512):
            for mix in ("full", "mixed"):
                lengths = lengths_of(mix, longest, scale.tokens)
                forward_flops = sum(4 * length * length * N * D for length in lengths)
                row = N * D * (2 if scale.device == "cuda" else 4) * scale.tokens
                for backward in (False, True):
                    yield Case(
                        f"attention {model} T={longest} {mix} {'both passes' if backward else 'forward'}",
                        lambda a=(model, N, D, lengths, longest), b=backward: _attention(scale, *a, b),
                        flops=forward_flops * (3.5 if backward else 1),
                        bytes=row * (12 if backward else 4),
                    )


def _attention(
    scale: Scale, model: str, N: int, D: int, lengths: list[int], longest: int, backward: bool
) -> dict[str, Run | str]:
    device, T, S = scale.device, scale.tokens, len(lengths)
    P = kernels.padded_head_dim(D, torch.empty(0, device=device, dtype=scale.dtype))
    qkv = torch.randn(T, 3, N, P, device=device, dtype=scale.dtype)
    qkv[..., D:] = 0
    qkv.requires_grad_(backward)
    cu_seqlens, softmax_scale = offsets(lengths, device), D**-0.5
    schedule = kernels.attention_schedule(qkv, cu_seqlens, longest, P)
    inside = torch.arange(longest, device=device) < cu_seqlens.diff()[:, None]  # [S, L]
    full = bool(inside.all())
    padded = torch.randn(3, S, N, longest, P, device=device, dtype=scale.dtype)
    padded[..., D:] = 0
    padded.requires_grad_(backward)
    mask = None if full else inside[:, None, None, :].expand(S, N, longest, longest)

    def both(forward: Callable[[], Tensor], of: Tensor) -> Run:
        return forward_backward(forward, [of]) if backward else forward

    def eager() -> Tensor:
        return attention_reference(*qkv.unbind(1), cu_seqlens, longest, scale=softmax_scale)

    def sdpa(*backends) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.nn.attention.sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(*padded, attn_mask=mask, scale=softmax_scale)

        return run

    B = torch.nn.attention.SDPBackend
    runners: dict[str, Run | str] = {
        "jixu": both(
            lambda: kernels.attention_packed(
                qkv, cu_seqlens, longest, scale=softmax_scale, schedule=schedule
            ),
            qkv,
        ),
        "torch eager": both(eager, qkv),
        "SDPA flash": both(sdpa(B.FLASH_ATTENTION), padded) if full else "takes no mask",
        "SDPA efficient": both(sdpa(B.EFFICIENT_ATTENTION), padded) if device == "cuda" else "for the GPU",
        "SDPA any": both(sdpa(B.FLASH_ATTENTION, B.EFFICIENT_ATTENTION, B.CUDNN_ATTENTION, B.MATH), padded),
    }
    # only where sequences are full does the reference compile to one graph of fixed shapes
    compiled = _compiled(eager, device, model) if full else "shapes depend on the data"
    runners["torch.compile"] = compiled if isinstance(compiled, str) else both(compiled, qkv)
    runners["FlexAttention"] = (
        _flex(qkv, lengths, softmax_scale, both, device)
        if model == COMPILED
        else f"compiled for {COMPILED} only"
    )
    runners["flash-attn"] = _flash_attn(qkv, cu_seqlens, longest, softmax_scale, both)
    return runners


def _flex(qkv: Tensor, lengths: list[int], softmax_scale: float, both: Callable, device: str) -> Run | str:
    if device != "cuda":
        return "FlexAttention is for the GPU"
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    T = qkv.shape[0]
    document = torch.repeat_interleave(
        torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device)
    )
    block_mask = create_block_mask(
        lambda b, h, q, k: document[q] == document[k], None, None, T, T, device=device, _compile=True
    )
    flex = torch.compile(flex_attention)

    def run() -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in qkv.unbind(1))
        return flex(q, k, v, block_mask=block_mask, scale=softmax_scale)

    return both(run, qkv)


def _flash_attn(
    qkv: Tensor, cu_seqlens: Tensor, longest: int, softmax_scale: float, both: Callable
) -> Run | str:
    if importlib.util.find_spec("flash_attn") is None:
        return "not installed"
    from flash_attn import flash_attn_varlen_qkvpacked_func

    return both(
        lambda: flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, longest, softmax_scale=softmax_scale), qkv
    )


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
        parts = zip(states.split(1024), labels.split(1024), strict=True)
        return torch.cat(
            [F.cross_entropy(F.linear(x, weight, bias).float(), y, reduction="none") for x, y in parts]
        )

    compiled = _compiled(lambda: mlm_loss_reference(*inputs, labels)[0], scale.device)
    runners = {
        "jixu": both(lambda: kernels.mlm_loss(*inputs, labels)[0]),
        "torch eager": both(lambda: mlm_loss_reference(*inputs, labels)[0]),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
        "chunks of 1024 rows": both(chunked),
        "Liger-Kernel": "not installed",
    }
    if importlib.util.find_spec("liger_kernel") is not None:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        runners["Liger-Kernel"] = both(lambda: liger(weight, states, labels, bias))
    return runners


def embedding_cases(scale: Scale) -> Iterator[Case]:
    for model, (_N, _D, H) in EVALUATED.items():
        for layout in ("google", "bright"):
            for backward in (False, True):
                size, E = 2 * scale.tokens, 128
                yield Case(
                    f"embed {model} {layout} {'both passes' if backward else 'forward'}",
                    lambda a=(model, H, layout), b=backward: _embedding(scale, *a, b),
                    flops=size * E * H * (3 if backward else 1),
                    bytes=scale.tokens * 24 + size * H * (2 if backward else 1) + 2 * scale.vocabulary * E,
                )


def _embedding(scale: Scale, model: str, H: int, layout: str, backward: bool) -> dict[str, Run | str]:
    device, T, E, V = scale.device, scale.tokens, 128, scale.vocabulary
    W = H if layout == "bright" else E
    inputs = [
        torch.randn(s, device=device, dtype=scale.dtype, requires_grad=backward)
        for s in [(V, E), (2, W), (512, W), (W,), (W,), (H, E), (H,)]
    ]
    # Zipf's ranks, and a twelfth of all tokens [MASK]: what the backward scatter must not serialise on
    ranks = (torch.rand(T, device=device) * torch.tensor(float(V)).log()).exp().long().clamp_max(V - 1)
    ids = torch.where(torch.rand(T, device=device) < 0.12, 4, ranks)
    places, types = torch.arange(T, device=device) % 512, torch.arange(T, device=device) // 64 % 2
    norm = Norm(inputs[3], inputs[4], 1e-12)
    arguments = (ids, types, places, Tables(*inputs[:3]), norm, Projection(*inputs[5:]), layout)

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(*arguments)  # noqa: E731
        return forward_backward(forward, inputs) if backward else forward

    compiled = _compiled(embed_reference, device, model)
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
                lambda a=(model, H), b=backward: _rows(scale, *a, b),
                bytes=size * (7 if backward else 3),
            )
            yield Case(
                f"bias_gelu {model} {passes}",
                lambda a=(model, 4 * H), b=backward: _activation(scale, *a, b),
                bytes=4 * size * (5 if backward else 2),
            )


def _rows(scale: Scale, model: str, H: int, backward: bool) -> dict[str, Run | str]:
    inputs = [
        torch.randn(s, device=scale.device, dtype=scale.dtype, requires_grad=backward)
        for s in [(scale.tokens, H), (scale.tokens, H), (H,), (H,)]
    ]

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(*inputs, 1e-12)  # noqa: E731
        return forward_backward(forward, inputs) if backward else forward

    compiled = _compiled(add_layer_norm_reference, scale.device, model)
    return {
        "jixu": both(kernels.add_layer_norm),
        "torch eager": both(add_layer_norm_reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
    }


def _activation(scale: Scale, model: str, width: int, backward: bool) -> dict[str, Run | str]:
    x = torch.randn(scale.tokens, width, device=scale.device, dtype=scale.dtype, requires_grad=backward)
    bias = torch.randn(width, device=scale.device, dtype=scale.dtype, requires_grad=backward)

    def both(function: Callable[..., Tensor]) -> Run:
        forward = lambda: function(x, bias, "gelu_new")  # noqa: E731
        return forward_backward(forward, [x, bias]) if backward else forward

    compiled = _compiled(bias_gelu_reference, scale.device, model)
    return {
        "jixu": both(kernels.bias_gelu),
        "torch eager": both(bias_gelu_reference),
        "torch.compile": compiled if isinstance(compiled, str) else both(compiled),
    }


def kernel_cases(scale: Scale) -> list[Case]:
    """Everything but whole models."""
    return [*attention_cases(scale), *loss_cases(scale), *embedding_cases(scale), *row_cases(scale)]
