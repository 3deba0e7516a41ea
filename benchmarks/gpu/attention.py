"""Attention as `benchmarks.gpu` measures it.

All rivals get heads of the padded width, which suits them too, and operands they need not copy: the packed
projection, or separate queries, keys and values. T = packed tokens, S = sequences, N = heads, D = head dim,
P = padded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels
from benchmarks.gpu.scale import EVALUATED, FORWARD_ONLY, Scale, compiled_or_why, lengths_of, offsets
from benchmarks.gpu.timing import Case, Run, attempt, forward_backward
from kernels.attention import attention_reference, padded_head_dim

Backend = torch.nn.attention.SDPBackend


def attention_cases(scale: Scale) -> Iterator[Case]:
    for model, (N, D, _H) in EVALUATED.items():
        for longest in (128, 512):
            for mix in ("full", "mixed"):
                lengths = lengths_of(mix, longest, scale.tokens)
                forward_flops = sum(4 * length * length * N * D for length in lengths)
                row = N * D * scale.dtype.itemsize * scale.tokens
                for backward in (False, True):
                    yield Case(
                        f"attention {model} T={longest} {mix} {'both passes' if backward else 'forward'}",
                        lambda a=(N, D, lengths, longest), b=backward: _attention(scale, *a, b),
                        flops=forward_flops * (3.5 if backward else 1),
                        bytes=row * (12 if backward else 4),
                    )


@dataclass(frozen=True)
class Operands:
    """A batch as the rivals take it: the same lengths, random numbers."""

    packed: Tensor  # [T, 3, N, P]
    cu_seqlens: Tensor
    lengths: list[int]
    longest: int
    scale: float
    backward: bool

    @property
    def device(self) -> str:
        return self.packed.device.type

    def leaves(self, *shape: int) -> list[Tensor]:
        """Draw contiguous queries, keys and values of a shape [..., P]."""
        like = {"device": self.packed.device, "dtype": self.packed.dtype}
        return [torch.randn(shape, **like, requires_grad=self.backward) for _ in range(3)]

    def passes(self, forward: Callable[[], Tensor], inputs: list[Tensor]) -> Run:
        return forward_backward(forward, inputs) if self.backward else forward


def _attention(
    scale: Scale, N: int, D: int, lengths: list[int], longest: int, backward: bool
) -> dict[str, Run | str]:
    P = padded_head_dim(D, torch.empty(0, device=scale.device, dtype=scale.dtype))
    packed = torch.randn(scale.tokens, 3, N, P, device=scale.device, dtype=scale.dtype)
    packed[..., D:] = 0
    packed.requires_grad_(backward)
    x = Operands(packed, offsets(lengths, scale.device), lengths, longest, D**-0.5, backward)
    full = len(lengths) * longest == scale.tokens
    eager = lambda: attention_reference(*packed.unbind(1), x.cu_seqlens, longest, scale=x.scale)  # noqa: E731
    # only where sequences are full does the reference compile to one graph of fixed shapes
    compiled = compiled_or_why(eager, scale.device, backward) if full else "shapes depend on the data"
    flex = attempt(_flex, x) if backward else FORWARD_ONLY
    return {
        "jixu": attempt(_jixu, x),
        "torch eager": x.passes(eager, [packed]),
        **_padded_sdpa(x, full),
        "SDPA nested": attempt(_nested, x),
        "varlen_attn": attempt(_varlen, x),
        "flash-attn": attempt(_flash_attn, x),
        "torch.compile": compiled if isinstance(compiled, str) else x.passes(compiled, [packed]),
        "FlexAttention": flex,
    }


def _jixu(x: Operands) -> Run:
    schedule = kernels.attention_schedule(x.packed, x.cu_seqlens, x.longest, x.packed.shape[3])
    settings = {"scale": x.scale, "schedule": schedule}
    return x.passes(lambda: kernels.attention(x.packed, x.cu_seqlens, x.longest, **settings), [x.packed])


def _padded_sdpa(x: Operands, full: bool) -> dict[str, Run | str]:
    """Run torch's SDPA on the padded batch, with a mask where sequences are shorter."""
    S, (N, P) = len(x.lengths), x.packed.shape[2:]
    inputs = x.leaves(S, N, x.longest, P)
    inside = torch.arange(x.longest, device=x.device) < x.cu_seqlens.diff()[:, None]  # [S, L]
    mask = None if full else inside[:, None, None, :]

    def sdpa(*backends: Backend) -> Run:
        def run() -> Tensor:
            with torch.nn.attention.sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=x.scale)

        return x.passes(run, inputs)

    gpu_only = "" if x.device == "cuda" else "for the GPU"
    return {
        "SDPA flash": sdpa(Backend.FLASH_ATTENTION) if full else "takes no mask",
        "SDPA efficient": gpu_only or sdpa(Backend.EFFICIENT_ATTENTION),
        "SDPA any": sdpa(
            Backend.FLASH_ATTENTION, Backend.EFFICIENT_ATTENTION, Backend.CUDNN_ATTENTION, Backend.MATH
        ),
    }


def _nested(x: Operands) -> Run:
    """Run torch's SDPA on nested tensors, which know where sequences end."""
    inputs = x.leaves(*x.packed[:, 0].shape)
    ends = x.cu_seqlens.long()

    def run() -> Tensor:
        q, k, v = (
            torch.nested.nested_tensor_from_jagged(
                y, ends, min_seqlen=min(x.lengths), max_seqlen=x.longest
            ).transpose(1, 2)
            for y in inputs
        )
        return F.scaled_dot_product_attention(q, k, v, scale=x.scale).transpose(1, 2).values()

    return x.passes(run, inputs)


def _varlen(x: Operands) -> Run | str:
    """Run torch's FlashAttention-2 over packed sequences, with its own scale, which costs the same."""
    if x.device != "cuda":
        return "for the GPU"
    from torch.nn.attention.varlen import varlen_attn

    inputs = x.leaves(*x.packed[:, 0].shape)
    return x.passes(lambda: varlen_attn(*inputs, x.cu_seqlens, x.cu_seqlens, x.longest, x.longest), inputs)


def _flash_attn(x: Operands) -> Run | str:
    if importlib.util.find_spec("flash_attn") is None:
        return "not installed"
    from flash_attn import flash_attn_varlen_qkvpacked_func

    def run() -> Tensor:
        return flash_attn_varlen_qkvpacked_func(x.packed, x.cu_seqlens, x.longest, softmax_scale=x.scale)

    return x.passes(run, [x.packed])


def _flex(x: Operands) -> Run | str:
    """Run FlexAttention, which is created and compiled at its first run."""
    if x.device != "cuda":
        return "for the GPU"
    made: list[Run] = []

    def run() -> None:
        if not made:
            made.append(_flex_run(x))
        made[0]()

    return run


def _flex_run(x: Operands) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    T, _three, N, P = x.packed.shape
    sequences = torch.arange(len(x.lengths), device=x.device)
    document = torch.repeat_interleave(sequences, x.cu_seqlens.diff().long())
    block_mask = create_block_mask(
        lambda b, h, q, k: document[q] == document[k], None, None, T, T, device=x.device, _compile=True
    )
    inputs = x.leaves(1, N, T, P)
    flex = torch.compile(flex_attention)
    return x.passes(lambda: flex(*inputs, block_mask=block_mask, scale=x.scale), inputs)
