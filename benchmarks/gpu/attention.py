"""Attention as `benchmarks.gpu` measures it.

All rivals get heads of the padded width, which suits them too, and operands they need not copy: the packed
projection, or separate queries, keys and values. T = packed tokens, S = sequences, N = heads, D = head dim,
P = padded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels
from benchmarks.gpu.scale import Scale, lengths_of, offsets
from benchmarks.gpu.timing import Case, Run, attempt, passes
from kernels.attention import attention_reference, padded_head_dim

Backend = torch.nn.attention.SDPBackend


# heads and head dim, by the model that has them
HEADS = {"tiny": (12, 26), "base": (12, 64), "xlarge": (16, 128), "xxlarge": (16, 256)}


def attention_cases(scale: Scale) -> Iterator[Case]:
    for model, dropout_p, longest, mix, backward in product(
        HEADS, (0.0, 0.1), (128, 512), ("full", "mixed"), (True, False)
    ):
        if longest > scale.tokens or (dropout_p and not (model == "base" and backward)):
            continue  # BERT alone has dropout
        N, D = HEADS[model]
        lengths = lengths_of(mix, longest, scale.tokens)
        row = N * D * scale.dtype.itemsize * scale.tokens
        words = f"D={D} T={longest} {mix}{' dropout' if dropout_p else ''}"
        yield Case(
            f"attention {words} {'both passes' if backward else 'forward'}",
            partial(_attention, scale, N, D, lengths, longest, backward, dropout_p),
            flops=sum(4 * length * length * N * D for length in lengths) * (3.5 if backward else 1),
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
    dropout_p: float

    @property
    def device(self) -> str:
        return self.packed.device.type

    def leaves(self, *shape: int) -> list[Tensor]:
        """Draw contiguous queries, keys and values of a shape [..., P]."""
        like = {"device": self.packed.device, "dtype": self.packed.dtype}
        return [torch.randn(shape, **like, requires_grad=self.packed.requires_grad) for _ in range(3)]


def _attention(
    scale: Scale, N: int, D: int, lengths: list[int], longest: int, backward: bool, dropout_p: float
) -> dict[str, Run | str]:
    P = padded_head_dim(D, torch.empty(0, device=scale.device, dtype=scale.dtype))
    packed = torch.randn(scale.tokens, 3, N, P, device=scale.device, dtype=scale.dtype)
    packed[..., D:] = 0
    packed.requires_grad_(backward)
    cu_seqlens = offsets(lengths, scale.device)
    x = Operands(packed, cu_seqlens, lengths, longest, D**-0.5, dropout_p)
    full = len(lengths) * longest == scale.tokens
    settings = {"scale": x.scale, "dropout_p": dropout_p}

    def eager() -> Tensor:
        return attention_reference(*packed.unbind(1), cu_seqlens, longest, **settings)

    return {
        "jixu": attempt(_jixu, x),
        "torch eager": passes(eager, [packed]),
        **_padded_sdpa(x, full),
        "SDPA nested": attempt(_nested, x),
        "varlen_attn": attempt(_varlen, x),
        "flash-attn": attempt(_flash_attn, x),
    }


def _jixu(x: Operands) -> Run:
    schedule = kernels.attention_schedule(x.packed, x.cu_seqlens, x.longest, x.packed.shape[3])
    settings = {"scale": x.scale, "dropout_p": x.dropout_p, "schedule": schedule}
    return passes(lambda: kernels.attention(x.packed, x.cu_seqlens, x.longest, **settings), [x.packed])


def _padded_sdpa(x: Operands, full: bool) -> dict[str, Run | str]:
    """Run torch's SDPA on the padded batch, with a mask where sequences are shorter."""
    S, (N, P) = len(x.lengths), x.packed.shape[2:]
    inputs = x.leaves(S, N, x.longest, P)
    inside = torch.arange(x.longest, device=x.device) < x.cu_seqlens.diff()[:, None]  # [S, L]
    mask = None if full else inside[:, None, None, :]

    def sdpa(*backends: Backend) -> Run:
        def run() -> Tensor:
            with torch.nn.attention.sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(
                    *inputs, attn_mask=mask, scale=x.scale, dropout_p=x.dropout_p
                )

        return passes(run, inputs)

    gpu_only = "" if x.device == "cuda" else "for the GPU"
    return {
        "SDPA flash": sdpa(Backend.FLASH_ATTENTION)
        if full and not gpu_only
        else "for the GPU, takes no mask",
        "SDPA cuDNN": gpu_only or sdpa(Backend.CUDNN_ATTENTION),
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
        out = F.scaled_dot_product_attention(q, k, v, scale=x.scale, dropout_p=x.dropout_p)
        return out.transpose(1, 2).values()

    return passes(run, inputs)


def _varlen(x: Operands) -> Run | str:
    """Run torch's FlashAttention-2 over packed sequences, with its own scale, which costs the same."""
    if x.device != "cuda" or x.dropout_p:
        return "for the GPU, without dropout"
    from torch.nn.attention.varlen import varlen_attn

    inputs = x.leaves(*x.packed[:, 0].shape)
    return passes(lambda: varlen_attn(*inputs, x.cu_seqlens, x.cu_seqlens, x.longest, x.longest), inputs)


def _flash_attn(x: Operands) -> Run | str:
    if importlib.util.find_spec("flash_attn") is None:
        return "not installed"
    from flash_attn import flash_attn_varlen_qkvpacked_func

    def run() -> Tensor:
        return flash_attn_varlen_qkvpacked_func(
            x.packed, x.cu_seqlens, x.longest, dropout_p=x.dropout_p, softmax_scale=x.scale
        )

    return passes(run, [x.packed])
