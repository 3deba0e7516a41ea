"""Bidirectional attention over packed sequences: softmax(q k^T * scale) v within each sequence.

Vaswani et al. 2017, section 3.2.1; tiled with a running softmax as in FlashAttention-2 (Dao 2023). T = packed
tokens, S = sequences, N = heads, D = head dim, L = longest sequence. `cu_seqlens` [S+1] holds the running sum
of the lengths; tokens of different sequences never meet. The kernels are in `kernels.attention_kernels`.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_cpu import Groups, attention_on_cpu, group_sequences
from kernels.attention_kernels import (
    attention_bwd_keys_kernel,
    attention_bwd_queries_kernel,
    attention_fwd_kernel,
)
from kernels.dispatch import (
    Constants,
    KernelError,
    autocast,
    compute_dtype,
    handwritten,
    on_device,
    operator,
    runs_kernels,
    triton,
    use_tensor_cores,
    use_triton,
)
from kernels.dropout import draw_seed, dropout_constants
from kernels.tuning import AttentionTiles, Launch, attention_tiles

MAX_HEAD_DIM = 128  # a wider head leaves the kernels tiles of 32 rows; FlashAttention-2 was written for it
Schedule = Tensor | Groups | None


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int,
    *, scale: float | None = None, dropout_p: float = 0.0,
) -> Tensor:  # fmt: skip
    """Compute `attention` over sequences padded to `max_seqlen`; torch's generator draws the dropout."""
    T, N, D = q.shape
    S, L = cu_seqlens.numel() - 1, max_seqlen
    if S * L == T:  # every sequence has the full length: the packed batch already is the padded one
        rows, mask = None, None
    else:
        token = torch.arange(T, device=q.device)
        sequence = torch.searchsorted(cu_seqlens.long(), token, right=True) - 1
        rows = sequence * L + token - cu_seqlens[sequence]  # [T], each token's among the S*L padded ones
        mask = (torch.arange(L, device=q.device) < cu_seqlens.diff()[:, None])[:, None, None]  # [S, 1, 1, L]

    def by_head(x: Tensor) -> Tensor:  # [T, N, D] -> [S, N, L, D]
        if rows is not None:
            x = x.new_zeros(S * L, N, D).index_copy(0, rows, x)
        return x.reshape(S, L, N, D).transpose(1, 2)

    # rows of an empty sequence may be NaN: none of them is read
    mixed = scaled_dot_product_attention(by_head(q), by_head(k), by_head(v), mask, dropout_p, scale=scale)
    mixed = mixed.transpose(1, 2).reshape(S * L, N, D)
    return mixed if rows is None else mixed[rows]


def schedule_tiles(cu_seqlens: Tensor, total: int, tile: int) -> Tensor:
    """List every tile [total // tile + S, 2] int32 as sequence and number within it, longest sequences first.

    The last programs to start are then the shortest, and the GPU drains evenly. The number of rows is a bound
    that needs no answer from the device; surplus rows have sequence -1.
    """
    S = cu_seqlens.numel() - 1
    program = torch.arange(total // tile + S, device=cu_seqlens.device)
    lengths, sequence = cu_seqlens.diff().sort(descending=True, stable=True)
    tiles = (lengths + tile - 1) // tile
    ends = tiles.cumsum(0)
    at = torch.searchsorted(ends, program, right=True).clamp_max(S - 1)
    sequence = torch.where(program < ends[-1:], sequence[at], -1)
    return torch.stack([sequence, program - (ends - tiles)[at]], 1).int()


def _width(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())


@operator("jixu::attention_schedule")
def _schedule(cu_seqlens: Tensor, total: int, max_seqlen: int, head_dim: int) -> Tensor:
    tile = attention_tiles(cu_seqlens.device, _width(head_dim), max_seqlen).tile
    return schedule_tiles(cu_seqlens, total, tile)


def _tiles(qkv: Tensor, max_seqlen: int, dropout_p: float) -> AttentionTiles:
    return attention_tiles(qkv.device, _width(qkv.shape[3]), max_seqlen, dropout_p > 0)


def _constants(qkv: Tensor, dropout_p: float) -> Constants:
    N, D = qkv.shape[2:]
    return {
        "N": N,
        "D": D,
        "TOKEN": qkv.stride(0),
        "HEAD": qkv.stride(2),
        "BLOCK_D": _width(D),
        **dropout_constants(dropout_p),
    }


def _blocks(tiles: AttentionTiles, launch: Launch) -> tuple[int, Constants]:
    """How many programs share a tile of the schedule, and the constants and options of the launch."""
    rows = launch.rows or tiles.tile
    split = tiles.tile // rows
    return split, {"TILE": rows, "SPLIT": split, "BLOCK": launch.block, **launch.options}


def _outputs(qkv: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    T, _three, N, D = qkv.shape
    out = torch.empty(T, N, D, dtype=qkv.dtype, device=qkv.device)
    return out, torch.empty(N, T, dtype=torch.float32, device=qkv.device)


def _save(ctx, inputs, output):
    qkv, cu_seqlens, schedule, seed, *ctx.settings = inputs
    ctx.save_for_backward(qkv, *output, cu_seqlens, schedule, seed)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, dout, _lse):
    return _backward(dout, *ctx.saved_tensors, *ctx.settings), *(None,) * 6


@operator("jixu::attention", _outputs, _save, _gradients)
def _forward(
    qkv: Tensor, cu_seqlens: Tensor, schedule: Tensor, seed: Tensor | None, max_seqlen: int, scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _outputs(qkv)
    T, N = out.shape[:2]
    tiles = _tiles(qkv, max_seqlen, dropout_p)
    if T:
        split, blocks = _blocks(tiles, tiles.forward)
        with on_device(qkv):
            attention_fwd_kernel[(schedule.shape[0] * split * N,)](
                out, lse, *qkv.unbind(1), cu_seqlens, schedule, seed, T, scale * math.log2(math.e),
                **_constants(qkv, dropout_p), **blocks,
            )  # fmt: skip
    return out, lse


@operator("jixu::attention_backward", lambda dout, qkv, *_: qkv.new_empty(qkv.shape))
def _backward(
    dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, cu_seqlens: Tensor, schedule: Tensor,
    seed: Tensor | None, max_seqlen: int, scale: float, dropout_p: float,
) -> Tensor:  # fmt: skip
    T, _three, N, _D = qkv.shape
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    if not T:
        return dqkv
    dq, dk, dv = dqkv.unbind(1)
    tiles = _tiles(qkv, max_seqlen, dropout_p)
    whole = tiles.whole if max_seqlen <= tiles.tile else None
    delta = None if whole else torch.empty(N, T, dtype=torch.float32, device=qkv.device)
    arguments = (*qkv.unbind(1), out, dout.contiguous(), lse, cu_seqlens, schedule, seed, T, scale)
    constants = _constants(qkv, dropout_p) | {"GRAD_TOKEN": dqkv.stride(0), "GRAD_HEAD": dqkv.stride(2)}
    with on_device(qkv):
        if whole is None:
            split, blocks = _blocks(tiles, tiles.queries)
            attention_bwd_queries_kernel[(schedule.shape[0] * split * N,)](
                dq, delta, *arguments, **constants, **blocks
            )
        split, blocks = _blocks(tiles, whole or tiles.keys)
        attention_bwd_keys_kernel[(schedule.shape[0] * split * N,)](
            dq, dk, dv, delta, *arguments, **constants, **blocks, WHOLE=whole is not None
        )
    return dqkv


def _on_kernels(x: Tensor, head_dim: int) -> bool:
    return use_tensor_cores(x) and head_dim <= MAX_HEAD_DIM


def _takes_flash(qkv: Tensor, scale: float, dropout_p: float) -> bool:
    """Whether torch's FlashAttention-2 for packed sequences can compute this."""
    D, is_half = qkv.shape[3], compute_dtype(qkv).itemsize == 2
    plain = not dropout_p and D % 8 == 0 and D <= 256 and scale == D**-0.5
    return plain and qkv.is_cuda and is_half and runs_kernels(qkv.device)


def _on_torch(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, scale: float, dropout_p: float, seed: Tensor | None,
    schedule: Schedule,
) -> Tensor:  # fmt: skip
    if handwritten(qkv):
        is_for_kernels = schedule is None or isinstance(schedule, Tensor)
        groups = group_sequences(cu_seqlens, qkv) if is_for_kernels else schedule
        return attention_on_cpu(autocast(qkv), groups, scale, dropout_p, seed)
    q, k, v = autocast(qkv).unbind(1)
    if _takes_flash(qkv, scale, dropout_p):
        from torch.nn.attention.varlen import varlen_attn

        return cast(Tensor, varlen_attn(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen))
    return attention_reference(q, k, v, cu_seqlens, max_seqlen, scale=scale, dropout_p=dropout_p)


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
    *, scale: float | None = None, dropout_p: float = 0.0, seed: Tensor | None = None,
    schedule: Schedule = None,
) -> Tensor:  # fmt: skip
    """Compute the attention of every token over its own sequence. Returns [T, N, D] in qkv's dtype.

    qkv [T, 3, N, D] is read and differentiated in place, without copies; cu_seqlens [S+1] int32 starts at 0
    and ends at T; max_seqlen is at least the longest length; scale defaults to D**-0.5. Probabilities are
    dropped with `dropout_p`: the seed ([1] int64 on the device, drawn from torch's generator by default), the
    token, the head and the key's place decide which. `schedule` comes from `attention_schedule`. Heads over
    MAX_HEAD_DIM run torch's FlashAttention-2, or where that cannot its padded attention, whose dropout on a
    GPU is its own; so do shapes for which FlashAttention-2 measured faster.
    """
    D = qkv.shape[3]
    scale = D**-0.5 if scale is None else scale
    if not scale > 0:
        raise KernelError(f"scale={scale} is not above 0")
    seed = draw_seed(qkv, dropout_p) if seed is None else seed
    ours = _on_kernels(qkv, D)
    if ours and not torch.compiler.is_compiling() and _takes_flash(qkv, scale, dropout_p):
        ours = not _tiles(qkv, max_seqlen, dropout_p).flash
    if not ours:
        return _on_torch(qkv, cu_seqlens, max_seqlen, scale, dropout_p, seed, schedule)
    if schedule is None:
        schedule = attention_schedule(qkv, cu_seqlens, max_seqlen, D)
    qkv = autocast(qkv)
    qkv = qkv if qkv.stride(3) == 1 else qkv.contiguous()
    return _forward(qkv, cu_seqlens.contiguous(), schedule, seed, max_seqlen, scale, dropout_p)[0]


def attention_schedule(x: Tensor, cu_seqlens: Tensor, max_seqlen: int, head_dim: int) -> Schedule:
    """Make the `schedule` of `attention`, which serves every layer, for a batch x [T, ...].

    For the kernels it lists tiles, on a CPU it holds groups of sequences; elsewhere it is None.
    """
    if not _on_kernels(x, head_dim):
        return group_sequences(cu_seqlens, x) if x.device.type == "cpu" else None
    return _schedule(cu_seqlens, x.shape[0], max_seqlen, head_dim)


def padded_head_dim(head_dim: int, x: Tensor) -> int:
    """Choose the width of a head so that its rows in x are whole 16-byte words in 16 bits.

    Heads of 26 numbers are only 4-byte aligned, and asynchronous copies then move 4 bytes at a time.
    """
    return head_dim if head_dim % 8 == 0 or not use_triton(x) else triton.cdiv(head_dim, 16) * 16
