"""Bidirectional attention over packed sequences: softmax(q k^T * scale) v within each sequence.

Vaswani et al. 2017, section 3.2.1. T = packed tokens, S = sequences, N = heads, D = head dim, L = longest
sequence. `cu_seqlens` [S+1] holds the running sum of the lengths; tokens of different sequences never meet.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
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
        generator = torch.Generator(q.device).manual_seed(seed)
        keep = torch.rand(probabilities.shape, generator=generator, device=q.device) >= dropout_p
        probabilities = probabilities * keep / (1 - dropout_p)
    mixed = (probabilities @ by_head(v)).transpose(1, 2).reshape(S * L, N, D)
    return mixed if rows is None else mixed[rows]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """Attention of every token over its own sequence.

    q, k, v [T, N, D]; cu_seqlens [S+1] int32, starting at 0 and ending at T; max_seqlen the longest length;
    scale D**-0.5 unless given. `dropout_p` of the probabilities are dropped: which ones, `seed` and the
    lengths decide. Returns [T, N, D] in q's dtype.
    """
    return attention_reference(q, k, v, cu_seqlens, max_seqlen, scale=scale, dropout_p=dropout_p, seed=seed)
