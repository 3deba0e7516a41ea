"""Bidirectional attention over packed sequences: softmax(q k^T * scale) v within each sequence.

Vaswani et al. 2017, section 3.2.1; tiled with a running softmax as in FlashAttention-2 (Dao 2023). T = packed
tokens, S = sequences, N = heads, D = head dim, L = longest sequence. `cu_seqlens` [S+1] holds the running sum
of the lengths; tokens of different sequences never meet. The kernels are in `kernels.attention_kernels`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.attention_cpu import Groups, attention_on_cpu, group_sequences
from kernels.attention_kernels import (
    attention_bwd_keys_kernel,
    attention_bwd_queries_kernel,
    attention_fwd_kernel,
)
from kernels.dispatch import KernelError, autocast, by_hand, compute_dtype, on_device, triton, use_triton
from kernels.tuning import AttentionTiles, attention_tiles

MAX_HEAD_DIM = 256
Schedule = Tensor | Groups | None


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor = 0,
) -> Tensor:
    """As `attention`, by batched matrix products over sequences padded to `max_seqlen`."""
    T, N, D = q.shape
    S, L = cu_seqlens.numel() - 1, max_seqlen
    scale = D**-0.5 if scale is None else scale
    if S * L == T:  # every sequence has the full length: the packed batch already is the padded one
        rows, hidden_keys = None, None
    else:
        lengths = cu_seqlens.diff()
        inside = torch.arange(L, device=q.device) < lengths[:, None]  # [S, L]
        rows = inside.flatten().nonzero().squeeze(1)  # [T], each token's row among the S*L padded ones
        hidden_keys = ~inside[:, None, None]  # [S, 1, 1, L]

    def by_head(x: Tensor) -> Tensor:  # [T, N, D] -> [S, N, L, D]
        if rows is not None:
            x = x.new_zeros(S * L, N, D).index_copy(0, rows, x)
        return x.reshape(S, L, N, D).transpose(1, 2)

    scores = by_head(q * scale) @ by_head(k).transpose(-1, -2)  # [S, N, L, L]
    if hidden_keys is not None:
        # not -inf: rows of an empty sequence would become NaN, and NaN * 0 is NaN in the backward pass
        scores = scores.masked_fill(hidden_keys, torch.finfo(scores.dtype).min)
    probabilities = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))
    probabilities = probabilities.to(v.dtype)
    if dropout_p:
        generator = torch.Generator(q.device).manual_seed(int(seed))
        keep = torch.rand(probabilities.shape, generator=generator, device=q.device) >= dropout_p
        probabilities = probabilities * keep / (1 - dropout_p)
    mixed = (probabilities @ by_head(v)).transpose(1, 2).reshape(S * L, N, D)
    return mixed if rows is None else mixed[rows]


def schedule_tiles(cu_seqlens: Tensor, total: int, tile: int) -> Tensor:
    """The programs' work [total // tile + S, 2] int32: sequence and tile within it, longest sequences first.

    So the last programs to start are the shortest, and the GPU drains evenly. The number of rows is a bound
    known without asking the device; the sequence of a row too many is -1.
    """
    S = cu_seqlens.numel() - 1
    program = torch.arange(total // tile + S, device=cu_seqlens.device)
    if S == 0:
        return torch.empty(0, 2, dtype=torch.int32, device=cu_seqlens.device)
    lengths, sequence = cu_seqlens.diff().sort(descending=True, stable=True)
    tiles = (lengths + tile - 1) // tile
    ends = tiles.cumsum(0)
    at = torch.searchsorted(ends, program, right=True).clamp_max(S - 1)
    sequence = torch.where(program < ends[-1], sequence[at], -1)
    return torch.stack([sequence, program - (ends - tiles)[at]], 1).int()


def _width(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())


@torch.library.custom_op("jixu::attention_schedule", mutates_args=())
def _schedule(cu_seqlens: Tensor, total: int, max_seqlen: int, head_dim: int, exact: bool) -> Tensor:
    tile = attention_tiles(cu_seqlens.device, _width(head_dim), max_seqlen, exact=exact).tile
    return schedule_tiles(cu_seqlens, total, tile)


@_schedule.register_fake
def _(cu_seqlens, total, max_seqlen, head_dim, exact):
    tile = attention_tiles(cu_seqlens.device, _width(head_dim), max_seqlen, exact=exact).tile
    return cu_seqlens.new_empty(total // tile + cu_seqlens.shape[0] - 1, 2, dtype=torch.int32)


def _tiles(q: Tensor, max_seqlen: int, dropout_p: float) -> AttentionTiles:
    exact = q.dtype == torch.float32
    return attention_tiles(q.device, _width(q.shape[2]), max_seqlen, dropout_p > 0, exact)


def _constants(q: Tensor, dropout_p: float) -> dict[str, object]:
    D = q.shape[2]
    return {
        "N": q.shape[1],
        "D": D,
        "TOKEN": q.stride(0),
        "HEAD": q.stride(1),
        "BLOCK_D": _width(D),
        "DROPOUT": int(dropout_p * 2**31),  # of 31 random bits
        "KEPT": 1 / (1 - dropout_p),
        # tensor cores would round fp32 operands to tf32
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    T, N, D = q.shape
    out = torch.empty(T, N, D, dtype=q.dtype, device=q.device)
    lse = torch.empty(N, T, dtype=torch.float32, device=q.device)
    tiles = _tiles(q, max_seqlen, dropout_p)
    if T:
        with on_device(q):
            attention_fwd_kernel[(schedule.shape[0] * N,)](
                out, lse, q, k, v, cu_seqlens, schedule, seed, T, scale * math.log2(math.e),
                **_constants(q, dropout_p), TILE=tiles.tile, BLOCK=tiles.forward.block,
                **tiles.forward.options,
            )  # fmt: skip
    return out, lse


def _backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> None:
    """Write the gradients; dq, dk and dv share their strides."""
    T, N, D = q.shape
    if not T:
        return
    tiles = _tiles(q, max_seqlen, dropout_p)
    whole = max_seqlen <= tiles.tile and tiles.whole is not None
    delta = None if whole else torch.empty(N, T, dtype=torch.float32, device=q.device)
    grid = (schedule.shape[0] * N,)
    arguments = (q, k, v, out, dout.contiguous(), lse, cu_seqlens, schedule, seed, T, scale)
    constants = {**_constants(q, dropout_p), "TILE": tiles.tile}
    constants |= {"GRAD_TOKEN": dq.stride(0), "GRAD_HEAD": dq.stride(1)}
    with on_device(q):
        if not whole:
            launch = tiles.queries
            attention_bwd_queries_kernel[grid](
                dq, delta, *arguments, **constants, BLOCK=launch.block, **launch.options
            )
        launch = tiles.whole if whole else tiles.keys
        attention_bwd_keys_kernel[grid](
            dq, dk, dv, delta, *arguments, **constants, BLOCK=launch.block, WHOLE=whole, **launch.options
        )


@torch.library.custom_op("jixu::attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p)


@_attention.register_fake
def _(q, k, v, cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p):
    T, N, D = q.shape
    return q.new_empty(T, N, D), q.new_empty(N, T, dtype=torch.float32)


@torch.library.custom_op("jixu::attention_backward", mutates_args=())
def _attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    rest = (dout, q, k, v, out, lse, cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p)
    _backward(dq, dk, dv, *rest)
    return dq, dk, dv


@_attention_backward.register_fake
def _(dout, q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.max_seqlen, ctx.scale, ctx.dropout_p = inputs
    (*inputs_of_heads, cu_seqlens, schedule, seed) = tensors
    ctx.save_for_backward(*inputs_of_heads, *output, cu_seqlens, schedule, seed)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, dout, _lse):
    settings = (ctx.max_seqlen, ctx.scale, ctx.dropout_p)
    return *_attention_backward(dout, *ctx.saved_tensors, *settings), *(None,) * 6


_attention.register_autograd(_gradients, setup_context=_save)


@torch.library.custom_op("jixu::attention_packed", mutates_args=())
def _packed(
    qkv: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    return _forward(*qkv.unbind(1), cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p)


@_packed.register_fake
def _(qkv, cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p):
    T, _three, N, D = qkv.shape
    return qkv.new_empty(T, N, D), qkv.new_empty(N, T, dtype=torch.float32)


@torch.library.custom_op("jixu::attention_packed_backward", mutates_args=())
def _packed_backward(
    dout: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    schedule: Tensor,
    seed: Tensor | None,
    max_seqlen: int,
    scale: float,
    dropout_p: float,
) -> Tensor:
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    rest = (out, lse, cu_seqlens, schedule, seed, max_seqlen, scale, dropout_p)
    _backward(*dqkv.unbind(1), dout, *qkv.unbind(1), *rest)
    return dqkv


@_packed_backward.register_fake
def _(dout, qkv, *_):
    return qkv.new_empty(qkv.shape)


def _packed_gradients(ctx, dout, _lse):
    settings = (ctx.max_seqlen, ctx.scale, ctx.dropout_p)
    return _packed_backward(dout, *ctx.saved_tensors, *settings), *(None,) * 6


_packed.register_autograd(_packed_gradients, setup_context=_save)


def _checked_seed(x: Tensor, dropout_p: float, seed: int | Tensor) -> Tensor | None:
    """The seed as the kernels read it, None without dropout. Raises KernelError for what they cannot do."""
    if x.shape[-1] > MAX_HEAD_DIM:
        raise KernelError(f"heads of {x.shape[-1]} numbers: the attention kernel takes up to {MAX_HEAD_DIM}")
    if not 0 <= dropout_p < 1:
        raise KernelError(f"dropout_p={dropout_p}: it must be from 0 up to, not including, 1")
    if not dropout_p:
        return None
    # a fill, not a copy from the host: nothing waits, and a CUDA graph can hold it
    return seed if isinstance(seed, Tensor) else torch.full((1,), seed, device=x.device)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor = 0,
    schedule: Schedule = None,
) -> Tensor:
    """Attention of every token over its own sequence.

    q, k, v [T, N, D]; cu_seqlens [S+1] int32, starting at 0 and ending at T; max_seqlen the longest length,
    or more; scale D**-0.5 unless given. `dropout_p` of the probabilities are dropped: which ones, `seed` (a
    number, or [1] int64 on the device) and the lengths decide. `schedule` as of `attention_schedule`, or made
    here. Returns [T, N, D] in q's dtype.
    """
    if not use_triton(q):
        if by_hand(q):
            q, k, v = autocast(q), autocast(k), autocast(v)
            return attention_on_cpu(torch.stack((q, k, v), 1), cu_seqlens, scale, dropout_p, seed, schedule)
        return attention_reference(
            q, k, v, cu_seqlens, max_seqlen, scale=scale, dropout_p=dropout_p, seed=seed
        )
    T, N, D = q.shape
    seed = _checked_seed(q, dropout_p, seed)
    if schedule is None:
        schedule = attention_schedule(q, cu_seqlens, max_seqlen, D)
    q, k, v = autocast(q), autocast(k), autocast(v)
    # the kernels find a head in 32 bits, and its tokens in 64
    is_far = N * q.stride(1) >= 2**31
    if not q.stride() == k.stride() == v.stride() or q.stride(2) != 1 or is_far:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    scale = D**-0.5 if scale is None else scale
    return _attention(q, k, v, cu_seqlens.contiguous(), schedule, seed, max_seqlen, scale, dropout_p)[0]


def attention_packed(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor = 0,
    schedule: Schedule = None,
) -> Tensor:
    """`attention` of a packed projection qkv [T, 3, N, D], read and differentiated in place: no copies."""
    if not use_triton(qkv):
        if by_hand(qkv):
            return attention_on_cpu(autocast(qkv), cu_seqlens, scale, dropout_p, seed, schedule)
        q, k, v = qkv.unbind(1)
        return attention_reference(
            q, k, v, cu_seqlens, max_seqlen, scale=scale, dropout_p=dropout_p, seed=seed
        )
    T, _three, _N, D = qkv.shape
    seed = _checked_seed(qkv, dropout_p, seed)
    if schedule is None:
        schedule = attention_schedule(qkv, cu_seqlens, max_seqlen, D)
    qkv = autocast(qkv)
    qkv = qkv if qkv.stride(3) == 1 else qkv.contiguous()
    scale = D**-0.5 if scale is None else scale
    return _packed(qkv, cu_seqlens.contiguous(), schedule, seed, max_seqlen, scale, dropout_p)[0]


def attention_schedule(x: Tensor, cu_seqlens: Tensor, max_seqlen: int, head_dim: int) -> Schedule:
    """What `attention` takes as `schedule`; made once for a batch x [T, ...], it serves all layers.

    The kernels' tiles, which depend on the dtype (autocast's or that of x); on a CPU groups of sequences;
    None where the reference runs.
    """
    if not use_triton(x):
        return group_sequences(cu_seqlens) if x.device.type == "cpu" else None
    return _schedule(cu_seqlens, x.shape[0], max_seqlen, head_dim, compute_dtype(x) == torch.float32)


def padded_head_dim(head_dim: int, x: Tensor) -> int:
    """Width a projection should give the heads of `x`'s attention: rows of whole 16-byte words in 16 bits.

    Heads of 26 numbers are only 4-byte aligned, and asynchronous copies then move 4 bytes at a time.
    """
    return head_dim if head_dim % 8 == 0 or not use_triton(x) else triton.cdiv(head_dim, 16) * 16
