"""Token embedding: word, type and position rows summed, normalised and projected to the encoder's width.

Lan et al. 2020, section 3.1 (factorised embedding), in two orders; project is the linear map from E to H:
google  y = project(LayerNorm(word[id] + type[t] + position[p])), normalised at E
bright  y = LayerNorm(project(word[id]) + type[t] + position[p]), normalised at H (albert_zh)

The backward pass recomputes rows from the tables. The kernels are in `kernels.embedding_kernels`. T = packed
tokens, V = vocabulary, E = embedding size, H = hidden size, P = positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear

from kernels.dispatch import compute_dtype, on_device, operator, triton, use_triton
from kernels.embedding_kernels import (
    embed_norm_bwd_kernel,
    embed_norm_fwd_kernel,
    scatter_runs_kernel,
    scatter_slices_kernel,
)
from kernels.tuning import row_tile

PROGRAMS = 512  # of the backward pass; each sums its share of the rows


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
    input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor,
    tables: Tables, norm: Norm, projection: Projection | None, layout: Literal["google", "bright"] = "google",
) -> Tensor:  # fmt: skip
    """Compute `embed` in plain torch."""
    x = embedding(input_ids, tables.word)
    if layout == "bright" and projection is not None:
        x = linear(x, projection.weight, projection.bias)
    x = x + embedding(token_type_ids, tables.token_type) + embedding(position_ids, tables.position)
    x = layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    if layout == "google" and projection is not None:
        x = linear(x, projection.weight, projection.bias)
    return x


def _normalise(
    word: Tensor, ids: Tensor | None, addends: Sequence[Tensor], norm: Norm, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm the sum of word rows (by ids, or all in order), types and positions; add the statistics."""
    T, W = addends[1].numel(), word.shape[1]
    y = torch.empty(T, W, dtype=dtype, device=word.device)
    mean, rstd = (torch.empty(T, dtype=torch.float32, device=word.device) for _ in range(2))
    blocks = row_tile(W)
    if T:
        with on_device(word):
            embed_norm_fwd_kernel[(triton.cdiv(T, blocks["BLOCK_R"]),)](
                y, mean, rstd, word, ids, *addends, norm.weight, norm.bias, T, norm.eps, W=W, **blocks
            )
    return y, mean, rstd


def _normalise_backward(
    dy: Tensor, mean: Tensor, rstd: Tensor, word: Tensor, ids: Tensor | None, addends: Sequence[Tensor],
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of the norm's input, weight and bias."""
    T, W = dy.shape
    blocks = row_tile(W)
    programs = min(PROGRAMS, max(1, triton.cdiv(T, blocks["BLOCK_R"])))
    dx = torch.empty_like(dy)
    dweight, dbias = (torch.empty(programs, W, dtype=torch.float32, device=dy.device) for _ in range(2))
    with on_device(word):
        embed_norm_bwd_kernel[(programs,)](
            dx, dweight, dbias, dy, mean, rstd, word, ids, *addends, weight, T, W=W, **blocks
        )
    return dx, dweight.sum(0), dbias.sum(0)


def _linear(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return x if weight is None else linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _id_dtype(rows: int) -> torch.dtype:
    """Choose the narrowest dtype for ids below `rows`: the sort goes over its keys byte by byte."""
    kinds = (torch.int8, torch.int16, torch.int32)
    return next(kind for kind in kinds if rows - 1 <= torch.iinfo(kind).max)


def scatter_rows(x: Tensor, ids: Tensor, rows: int) -> Tensor:
    """Sum the rows of x [T, W] by `ids` [T] into [rows, W] fp32: the gradient of a table that was read.

    A row of x that is not finite may also spoil the sums of neighbouring ids in sorted order: they share a
    matrix product, where 0 * NaN is NaN.
    """
    T, W = x.shape
    table = torch.zeros(rows, W, dtype=torch.float32, device=x.device)
    if not T:
        return table
    ids, order = ids.to(_id_dtype(rows)).sort(stable=True)
    # sorted rows and columns that a program sums
    size, widest = (32, 64) if x.dtype == torch.float32 else (64, 128)
    slices = triton.cdiv(T, size)
    last = torch.arange(1, slices + 1, device=x.device).mul_(size).clamp_max_(T) - 1
    ends = torch.searchsorted(ids, ids[last], right=True, out_int32=True)
    partial = torch.empty(slices, 2, W, dtype=torch.float32, device=x.device)
    width = min(widest, max(16, triton.next_power_of_2(W)))
    grid = (slices, triton.cdiv(W, width))
    with on_device(x):
        scatter_slices_kernel[grid](
            table, partial, x, ids, order, T, W=W, SLICE=size, BLOCK_W=width, num_warps=4
        )
        scatter_runs_kernel[grid](
            table, partial, ids, ends, T, W=W, SLICE=size, BLOCK_C=16, BLOCK_W=width, num_warps=4
        )
    return table


def _outputs(input_ids, type_ids, position_ids, word, _type, _position, weight, _bias, projection, *rest):
    T, width = input_ids.shape[0], weight if projection is None else projection
    mean, rstd = (word.new_empty(T, dtype=torch.float32) for _ in range(2))
    return word.new_empty(T, width.shape[0], dtype=rest[-1]), mean, rstd


def _save(ctx, inputs, output):
    *tensors, eps, bright, dtype = inputs
    ctx.settings = eps, bright, dtype
    ctx.save_for_backward(*output[1:], *tensors)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx, dy, _mean, _rstd):
    gradients = _backward(dy, *ctx.saved_tensors, *ctx.settings)
    return None, None, None, *gradients, *(None,) * (10 - len(gradients))


@operator("jixu::embed", _outputs, _save, _gradients)
def _forward(
    input_ids: Tensor, type_ids: Tensor, position_ids: Tensor, word: Tensor, token_type: Tensor,
    position: Tensor, norm_weight: Tensor, norm_bias: Tensor, projection: Tensor | None,
    projection_bias: Tensor | None, eps: float, bright: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    addends = (token_type, type_ids, position, position_ids)
    norm = Norm(norm_weight, norm_bias, eps)
    if bright:
        x = _linear(embedding(input_ids, word).to(dtype), projection, projection_bias)
        return _normalise(x, None, addends, norm, dtype)
    x, mean, rstd = _normalise(word, input_ids, addends, norm, dtype)
    return _linear(x, projection, projection_bias), mean, rstd


@operator(
    "jixu::embed_backward",
    lambda dy, mean, rstd, ids, types, positions, *weights: [
        torch.empty_like(w) for w in weights[:-3] if w is not None
    ],
)
def _backward(
    dy: Tensor, mean: Tensor, rstd: Tensor, input_ids: Tensor, type_ids: Tensor, position_ids: Tensor,
    word: Tensor, token_type: Tensor, position: Tensor, norm_weight: Tensor, norm_bias: Tensor,
    projection: Tensor | None, projection_bias: Tensor | None, eps: float, bright: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Compute the gradients of the tables, of the norm and, if there is one, of the projection."""
    addends = (token_type, type_ids, position, position_ids)
    dy, dprojection = dy.contiguous(), []
    if projection is not None and not bright:
        normed = _normalise(word, input_ids, addends, Norm(norm_weight, norm_bias, eps), dtype)[0]
        dprojection = [dy.t() @ normed, dy.sum(0, dtype=torch.float32)]
        dy = dy @ projection.to(dtype)
    rows = _linear(embedding(input_ids, word).to(dtype), projection, projection_bias) if bright else word
    row_ids = None if bright else input_ids
    dx, dweight, dbias = _normalise_backward(dy, mean, rstd, rows, row_ids, addends, norm_weight)
    by_types = scatter_rows(dx, type_ids, token_type.shape[0])
    by_positions = scatter_rows(dx, position_ids, position.shape[0])
    if projection is not None and bright:
        dprojection = [dx.t() @ embedding(input_ids, word).to(dtype), dx.sum(0, dtype=torch.float32)]
        dx = dx @ projection.to(dtype)
    by_words = scatter_rows(dx, input_ids, word.shape[0])
    gradients = [by_words, by_types, by_positions, dweight, dbias, *dprojection]
    weights = (word, token_type, position, norm_weight, norm_bias, projection, projection_bias)
    return [g.to(w.dtype) for g, w in zip(gradients, weights, strict=False) if w is not None]


def embed(
    input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor,
    tables: Tables, norm: Norm, projection: Projection | None, layout: Literal["google", "bright"] = "google",
) -> Tensor:  # fmt: skip
    """Compute the encoder's input of every token. Ids [T] int64. Returns [T, H], or [T, E] unprojected.

    The backward pass saves the ids and two fp32 numbers per token, the norm's statistics.
    """
    if not use_triton(tables.word):
        return embed_reference(input_ids, token_type_ids, position_ids, tables, norm, projection, layout)
    tensors = (input_ids, token_type_ids, position_ids, *tables, norm.weight, norm.bias)
    dense = [x if x is None else x.contiguous() for x in (*tensors, *(projection or (None, None)))]
    return _forward(*dense, norm.eps, layout == "bright", compute_dtype(tables.word))[0]
