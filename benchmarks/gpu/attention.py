"""Attention as `benchmarks.gpu` measures it.

All rivals get heads of the padded width, which suits them too, and operands they need not copy: the packed
projection, or separate queries, keys and values. On an H100 and an H200 torch's own choice for SDPA was as
fast as cuDNN, and SDPA of nested tensors as varlen_attn, each within 3%. T = packed tokens, S = sequences,
N = heads, D = head dim, P = padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernels
from benchmarks.gpu.scale import Scale, lengths_of, offsets
from benchmarks.gpu.timing import Case, Run, attempt, passes, rival
from kernels.attention import padded_head_dim

# heads and head dim, by the model that has them
HEADS = {"tiny": (12, 26), "base": (12, 64), "xlarge": (16, 128), "xxlarge": (16, 256)}


def attention_cases(scale: Scale) -> Iterator[Case]:
    for model, dropout_p, longest, mix in product(HEADS, (0.0, 0.1), (128, 512), ("full", "mixed")):
        if longest > scale.tokens or (dropout_p and model != "base"):
            continue  # BERT alone has dropout
        N, D = HEADS[model]
        lengths = lengths_of(mix, longest, scale.tokens)
        yield Case(
            f"attention D={D} T={longest} {mix}{' dropout' if dropout_p else ''} both passes",
            partial(_attention, scale, N, D, lengths, longest, dropout_p),
            flops=3.5 * sum(4 * length * length * N * D for length in lengths),
            bytes=12 * N * D * scale.dtype.itemsize * scale.tokens,
        )


@dataclass(frozen=True)
class Operands:
    """A batch as the rivals take it: the same lengths, random numbers."""

    packed: Tensor  # [T, 3, N, P]
    cu_seqlens: Tensor
    longest: int
    scale: float
    dropout_p: float

    def leaves(self, *shape: int) -> list[Tensor]:
        """Draw contiguous queries, keys and values of a shape [..., P]."""
        like = {"device": self.packed.device, "dtype": self.packed.dtype}
        return [torch.randn(shape, **like, requires_grad=True) for _ in range(3)]


def _attention(
    scale: Scale, N: int, D: int, lengths: list[int], longest: int, dropout_p: float
) -> dict[str, Run | str]:
    P = padded_head_dim(D, torch.empty(0, device=scale.device, dtype=scale.dtype))
    packed = torch.randn(scale.tokens, 3, N, P, device=scale.device, dtype=scale.dtype)
    packed[..., D:] = 0
    packed.requires_grad_()
    x = Operands(packed, offsets(lengths, scale.device), longest, D**-0.5, dropout_p)
    return {
        "jixu": attempt(_jixu, x),
        "SDPA cuDNN": attempt(_cudnn, x),
        "varlen_attn": attempt(_varlen, x),
        "flash-attn": rival("flash_attn", _flash_attn, x),
    }


def _jixu(x: Operands) -> Run:
    schedule = kernels.attention_schedule(x.packed, x.cu_seqlens, x.longest, x.packed.shape[3])
    settings = {"scale": x.scale, "dropout_p": x.dropout_p, "schedule": schedule}
    return passes(lambda: kernels.attention(x.packed, x.cu_seqlens, x.longest, **settings), [x.packed])


def _cudnn(x: Operands) -> Run | str:
    """Run torch's SDPA on the padded batch, with a mask where sequences are shorter."""
    if not x.packed.is_cuda:
        return "for the GPU"
    lengths, (N, P) = x.cu_seqlens.diff(), x.packed.shape[2:]
    inputs = x.leaves(len(lengths), N, x.longest, P)
    inside = torch.arange(x.longest, device=lengths.device) < lengths[:, None]  # [S, L]
    mask = None if bool(inside.all()) else inside[:, None, None, :]

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                *inputs, attn_mask=mask, scale=x.scale, dropout_p=x.dropout_p
            )

    return passes(run, inputs)


def _varlen(x: Operands) -> Run | str:
    """Run torch's FlashAttention-2 over packed sequences, with its own scale, which costs the same."""
    if not x.packed.is_cuda or x.dropout_p:
        return "for the GPU, without dropout"
    from torch.nn.attention.varlen import varlen_attn

    inputs = x.leaves(*x.packed[:, 0].shape)
    return passes(lambda: varlen_attn(*inputs, x.cu_seqlens, x.cu_seqlens, x.longest, x.longest), inputs)


def _flash_attn(x: Operands) -> Run:
    from flash_attn import flash_attn_varlen_qkvpacked_func

    def run() -> Tensor:
        return flash_attn_varlen_qkvpacked_func(
            x.packed, x.cu_seqlens, x.longest, dropout_p=x.dropout_p, softmax_scale=x.scale
        )

    return passes(run, [x.packed])
