"""Token embedding: word, type and position rows summed, normalised and projected to the encoder's width.

Lan et al. 2020, section 3.1 (factorised embedding). T = packed tokens, V = vocabulary, E = embedding size,
H = hidden size, P = positions. Two orders exist: `google` normalises at E and then projects; `bright`
(albert_zh) projects the words, adds types and positions at H and normalises there. The kernels are in
`kernels.embedding_kernels`; what the backward pass needs of the forward one it makes again from the tables.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear

from kernels.dispatch import compute_dtype, on_device, triton, use_triton
from kernels.embedding_kernels import (
    embed_norm_bwd_kernel,
    embed_norm_fwd_kernel,
    embed_project_fwd_kernel,
    scatter_runs_kernel,
    scatter_slices_kernel,
)
from kernels.tuning import embedding_projects, scatter_tile

MAX_FUSED_WIDTH = 256  # of the tables, for the projection to be part of the pass
_PROGRAMS = 512  # how many programs share the rows in the backward pass, each summing its own


class Tables(NamedTuple):
    """Embedding tables; W is E in the google and bert layouts, H in the bright one."""

    word: Tensor  # [V, E]
    token_type: Tensor  # [2, W]
    position: Tensor  # [P, W]


class Norm(NamedTuple):
    weight: Tensor  # [W]
    bias: Tensor  # [W]
    eps: float


class Projection(NamedTuple):
    weight: Tensor  # [H, E]
    bias: Tensor | None  # [H]


def embed_reference(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    tables: Tables,
    norm: Norm,
    projection: Projection | None,
    layout: Literal["google", "bright"] = "google",
) -> Tensor:
    """As `embed`, in plain torch."""
    x = embedding(input_ids, tables.word)
    if layout == "bright":
        x = linear(x, projection.weight, projection.bias)
    x = x + embedding(token_type_ids, tables.token_type) + embedding(position_ids, tables.position)
    x = layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    if layout == "google" and projection is not None:
        x = linear(x, projection.weight, projection.bias)
    return x


def _precision(dtype: torch.dtype) -> str:
    # tensor cores would round fp32 operands to tf32
    return "ieee" if dtype == torch.float32 else "tf32"


def _in_one_pass(word: Tensor, dtype: torch.dtype) -> bool:
    """Whether the projection is part of the pass."""
    return word.shape[1] <= MAX_FUSED_WIDTH and embedding_projects(word.device, dtype == torch.float32)


def _row_blocks(width: int) -> dict[str, int]:
    columns = triton.next_power_of_2(width)
    warps = 4 if columns <= 1024 else 8
    return {"W": width, "BLOCK_T": max(1, 1024 // columns), "BLOCK_W": columns, "num_warps": warps}


def _normed(
    word: Tensor,
    ids: Tensor | None,
    sums: tuple[Tensor, ...],
    norm: tuple[Tensor, Tensor, float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of word (rows of a table by ids, or as it is) + types + positions, with its statistics."""
    T, W = sums[1].numel(), word.shape[1]
    y = torch.empty(T, W, dtype=dtype, device=word.device)
    mean, rstd = (torch.empty(T, dtype=torch.float32, device=word.device) for _ in range(2))
    blocks = _row_blocks(W)
    if T:
        with on_device(word):
            embed_norm_fwd_kernel[(triton.cdiv(T, blocks["BLOCK_T"]),)](
                y, mean, rstd, word, ids, *sums, *norm[:2], T, norm[2], **blocks
            )
    return y, mean, rstd


def _projected(
    word: Tensor, ids: Tensor, projection: Tensor, bias: Tensor | None, dtype: torch.dtype,
    sums: tuple[Tensor, ...] = (), norm: tuple[Tensor, Tensor, float] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The projection of words by ids, or if `norm` is given of their `_normed` sum, with its statistics."""
    T, (H, E) = ids.numel(), projection.shape
    y = torch.empty(T, H, dtype=dtype, device=word.device)
    mean = rstd = None
    if norm is not None:
        mean, rstd = (torch.empty(T, dtype=torch.float32, device=word.device) for _ in range(2))
    if T:
        with on_device(word):
            embed_project_fwd_kernel[(triton.cdiv(T, 64),)](
                y, mean, rstd, word, ids, *(sums or (None,) * 4), *(norm[:2] if norm else (None, None)),
                projection.to(dtype), bias, T, norm[2] if norm else 0.0, E=E, H=H, NORM=norm is not None,
                PRECISION=_precision(dtype), BLOCK_T=64, BLOCK_E=max(16, triton.next_power_of_2(E)),
                BLOCK_H=64, num_warps=4, num_stages=2,
            )  # fmt: skip
    return y, mean, rstd


def _linear(x: Tensor, projection: Tensor, bias: Tensor | None) -> Tensor:
    return linear(x, projection.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _projected_words(
    word: Tensor, ids: Tensor, projection: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Rows of the word table, projected [T, H]."""
    if _in_one_pass(word, dtype):
        return _projected(word, ids, projection, bias, dtype)[0]
    return _linear(embedding(ids, word).to(dtype), projection, bias)


def _id_dtype(rows: int) -> torch.dtype:
    """The narrowest for ids below `rows`: the sort goes over the bytes of its keys one by one."""
    kinds = (torch.int8, torch.int16, torch.int32)
    return next(kind for kind in kinds if rows - 1 <= torch.iinfo(kind).max)


def scatter_rows(x: Tensor, ids: Tensor, rows: int) -> Tensor:
    """The gradient [rows, W] fp32 of a table whose rows `ids` [T] were read: the rows of x [T, W] summed by
    id.

    A row of x that is not finite may also spoil the sums of the ids sorted next to its own: they share a
    matrix product, where 0 * NaN is NaN.
    """
    T, W = x.shape
    table = torch.zeros(rows, W, dtype=torch.float32, device=x.device)
    if not T:
        return table
    ids, order = ids.to(_id_dtype(rows)).sort(stable=True)
    size, widest = scatter_tile(x.dtype == torch.float32)
    slices = triton.cdiv(T, size)
    last = torch.arange(1, slices + 1, device=x.device).mul_(size).clamp_max_(T) - 1
    ends = torch.searchsorted(ids, ids[last], right=True, out_int32=True)
    partial = torch.empty(slices, 2, W, dtype=torch.float32, device=x.device)
    width = min(widest, max(16, triton.next_power_of_2(W)))
    grid = (slices, triton.cdiv(W, width))
    with on_device(x):
        scatter_slices_kernel[grid](
            table, partial, x, ids, order, T, W=W, PRECISION=_precision(x.dtype), SLICE=size, BLOCK_W=width,
            num_warps=4,
        )  # fmt: skip
        scatter_runs_kernel[grid](
            table, partial, ids, ends, T, W=W, SLICE=size, BLOCK_C=16, BLOCK_W=width, num_warps=4
        )
    return table


@torch.library.custom_op("jixu::embed", mutates_args=())
def _forward(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    projection: Tensor | None,
    projection_bias: Tensor | None,
    eps: float,
    bright: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = (token_type, token_type_ids, position, position_ids)
    norm = (norm_weight, norm_bias, eps)
    if bright:
        x = _projected_words(word, input_ids, projection, projection_bias, dtype)
        return _normed(x, None, sums, norm, dtype)
    if projection is not None and _in_one_pass(word, dtype):
        return _projected(word, input_ids, projection, projection_bias, dtype, sums, norm)
    x, mean, rstd = _normed(word, input_ids, sums, norm, dtype)
    return x if projection is None else _linear(x, projection, projection_bias), mean, rstd


@_forward.register_fake
def _(ids, types, positions, word, token_type, position, weight, bias, projection, pbias, eps, bright, dtype):
    T, H = ids.shape[0], word.shape[1] if projection is None else projection.shape[0]
    mean, rstd = (word.new_empty(T, dtype=torch.float32) for _ in range(2))
    return word.new_empty(T, H, dtype=dtype), mean, rstd


@torch.library.custom_op("jixu::embed_backward", mutates_args=())
def _backward(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    word: Tensor,
    token_type: Tensor,
    position: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    projection: Tensor | None,
    projection_bias: Tensor | None,
    eps: float,
    bright: bool,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Gradients of word, token_type, position, norm_weight, norm_bias, and of the projection."""
    sums = (token_type, token_type_ids, position, position_ids)
    dy, after = dy.contiguous(), []
    rows, ids = word, input_ids
    if bright:
        rows, ids = _projected_words(word, input_ids, projection, projection_bias, dtype), None
    elif projection is not None:
        normed = _normed(word, input_ids, sums, (norm_weight, norm_bias, eps), dtype)[0]
        after = [dy.t() @ normed, dy.sum(0, dtype=torch.float32)]
        dy = dy @ projection.to(dtype)
    dx, dweight, dbias = _norm_backward(dy, mean, rstd, rows, ids, sums, norm_weight)
    by_types = scatter_rows(dx, token_type_ids, token_type.shape[0])
    by_positions = scatter_rows(dx, position_ids, position.shape[0])
    if bright:
        after = [dx.t() @ embedding(input_ids, word).to(dtype), dx.sum(0, dtype=torch.float32)]
        dx = dx @ projection.to(dtype)
    by_words = scatter_rows(dx, input_ids, word.shape[0])
    gradients = [by_words, by_types, by_positions, dweight, dbias, *after]
    inputs = [word, token_type, position, norm_weight, norm_bias, projection, projection_bias]
    return [g.to(i.dtype) for g, i in zip(gradients, inputs, strict=False) if i is not None]


def _norm_backward(
    dy: Tensor,
    mean: Tensor,
    rstd: Tensor,
    word: Tensor,
    ids: Tensor | None,
    sums: tuple[Tensor, ...],
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what was normalised, of weight and of bias."""
    T, W = dy.shape
    blocks = _row_blocks(W)
    programs = min(_PROGRAMS, max(1, triton.cdiv(T, blocks["BLOCK_T"])))
    dx = torch.empty_like(dy)
    dweight, dbias = (torch.empty(programs, W, dtype=torch.float32, device=dy.device) for _ in range(2))
    with on_device(word):
        embed_norm_bwd_kernel[(programs,)](
            dx, dweight, dbias, dy, mean, rstd, word, ids, *sums, weight, T, **blocks
        )
    return dx, dweight.sum(0), dbias.sum(0)


@_backward.register_fake
def _(dy, mean, rstd, input_ids, token_type_ids, position_ids, *rest):
    return [x.new_empty(x.shape) for x in rest[:7] if x is not None]


def _save(ctx, inputs, output):
    *tensors, ctx.eps, ctx.bright, ctx.dtype = inputs
    ctx.save_for_backward(*output[1:], *tensors)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx, dy, _mean, _rstd):
    saved = ctx.saved_tensors
    gradients = iter(_backward(dy, *saved, ctx.eps, ctx.bright, ctx.dtype))
    tables = [None if x is None else next(gradients) for x in saved[5:]]
    return None, None, None, *tables, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


def embed(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    tables: Tables,
    norm: Norm,
    projection: Projection | None,
    layout: Literal["google", "bright"] = "google",
) -> Tensor:
    """Encoder input of every packed token. Ids [T] int64. Returns [T, H] ([T, E] without a projection).

    The backward pass is kept the ids and two fp32 numbers of each token, the statistics of its norm; rows
    [T, E] it makes again from the tables, and frees.
    """
    if not use_triton(tables.word):
        return embed_reference(input_ids, token_type_ids, position_ids, tables, norm, projection, layout)
    ids = [x.contiguous() for x in (input_ids, token_type_ids, position_ids)]
    weights = [x.contiguous() for x in (*tables, norm.weight, norm.bias)]
    weights += [x if x is None else x.contiguous() for x in (projection or (None, None))]
    return _forward(*ids, *weights, norm.eps, layout == "bright", compute_dtype(tables.word))[0]
