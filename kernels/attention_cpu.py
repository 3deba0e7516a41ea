"""Attention on a CPU: batched matrix products over groups of sequences of similar length, in both passes.

The products run in the input's dtype; bf16 at least doubles the speed. Saved for the backward pass are the
heads, laid out for the products, and the probabilities in the input's dtype. T = packed tokens, S = sequences
of a group, L = its longest, P = S * L places, N = heads, D = head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.dropout import keep_reference, row_keys_reference
from kernels.shapes import filler

# shortest sequence of a group as a share of its longest: padding then adds at most half the work
SIMILAR_LENGTH = 0.8
GROUP_TOKENS = 512  # a smaller group is not worth its calls, and also takes shorter sequences
GROUP_SCORES = 4 * 128**2  # largest S * L * L: a group's intermediates then stay in the caches
LOWEST = -1e30  # added to the scores of padding; finite, since a row of -inf alone would become NaN


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of scattered or padded sequences go."""

    tokens: Tensor  # [t] int64 of the batch
    inside: Tensor  # [t] int64, the places of `tokens`
    token_at: Tensor  # [P] int64; padding repeats a token of its own sequence
    penalty: Tensor | None  # [S, 1, L] fp32, LOWEST for padding


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of similar length, padded to the longest where they differ, or to a length that repeats."""

    sequences: int
    length: int
    begin: int  # first token
    places: Places | None  # None where the sequences are adjacent and of equal length

    def read(self, x: Tensor) -> Tensor:
        """Read the rows of x [T, ...] at the group's places [P, ...]; padding holds finite numbers."""
        if self.places is None:
            return x[self.begin : self.begin + self.sequences * self.length]
        return x.index_select(0, self.places.token_at)

    def read_or_zero(self, x: Tensor) -> Tensor:
        """Read the rows of x [T, ...] with 0 at padding."""
        if self.places is None:
            return self.read(x)
        rows = x.new_zeros(self.sequences * self.length, *x.shape[1:])
        return rows.index_copy_(0, self.places.inside, x.index_select(0, self.places.tokens))

    def write(self, x: Tensor, rows: Tensor) -> None:
        """Write the rows [S, L, ...], of any strides, to their tokens in x [T, ...]."""
        if self.places is None:
            x[self.begin : self.begin + self.sequences * self.length].view(rows.shape).copy_(rows)
        else:
            x.index_copy_(0, self.places.tokens, rows.flatten(0, 1).index_select(0, self.places.inside))


Groups = tuple[Group, ...]


def _cut(lengths: Sequence[int], x: Tensor) -> Iterator[list[int]]:
    """Cut sequence numbers into groups of similar length, the longest first, without empty sequences."""
    order = sorted((s for s in range(len(lengths)) if lengths[s]), key=lambda s: (-lengths[s], s))
    begin = tokens = 0
    for end, sequence in enumerate(order):
        longest, length = lengths[order[begin]], lengths[sequence]
        filled = longest + filler(longest, x)
        is_shorter = length < SIMILAR_LENGTH * longest and tokens >= GROUP_TOKENS
        if end > begin and (is_shorter or (end - begin + 1) * filled**2 > GROUP_SCORES):
            yield order[begin:end]
            begin, tokens = end, 0
        tokens += length
    if order:
        yield order[begin:]


def group_sequences(cu_seqlens: Tensor, x: Tensor) -> Groups:
    """Cut a batch into the groups that attention on `x` works through in every layer."""
    offsets = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in zip(offsets, offsets[1:], strict=False)]
    return tuple(_group(sequences, offsets, lengths, x) for sequences in _cut(lengths, x))


def _group(sequences: list[int], offsets: list[int], lengths: list[int], x: Tensor) -> Group:
    S, L = len(sequences), lengths[sequences[0]]
    L += filler(L, x)
    first = offsets[sequences[0]]
    begins = [offsets[s] for s in sequences]
    if begins == list(range(first, first + S * L, L)) and lengths[sequences[-1]] == L:
        return Group(S, L, first, None)
    start = torch.tensor(begins)[:, None]  # [S, 1]
    length = torch.tensor([lengths[s] for s in sequences])[:, None]
    place = torch.arange(L)
    is_inside = place < length  # [S, L]
    token_at = (start + torch.minimum(place, length - 1)).flatten()
    inside = is_inside.flatten().nonzero().squeeze(1)
    penalty = None if bool(is_inside.all()) else (~is_inside * LOWEST)[:, None]
    return Group(S, L, first, Places(token_at[inside], inside, token_at, penalty))


def _softmax(scores: Tensor, penalty: Tensor | None) -> Tensor:
    """Take the softmax of scores [N * S, L, L] plus padding's penalty [S, 1, L], in fp32 or more.

    torch's bf16 kernels are several times slower on rows that do not fill a vector.
    """
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if penalty is not None:
        S, _, L = penalty.shape
        exact.view(-1, S, L, L).add_(penalty)
    return torch.softmax(exact, -1, out=exact).to(scores.dtype)


def _softmax_backward(gradient: Tensor, probabilities: Tensor) -> Tensor:
    dtype = gradient.dtype
    # bf16 is slow on short rows, as in `_softmax`
    if gradient.element_size() == 2 and gradient.shape[-1] < 32:
        exact = torch._softmax_backward_data(gradient.float(), probabilities.float(), -1, torch.float32)
        return exact.to(dtype)
    return torch._softmax_backward_data(gradient, probabilities, -1, dtype)


class _Attention(torch.autograd.Function):
    """Compute `kernels.attention` of qkv [T, 3, N, D]; the groups come from `group_sequences`."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx, qkv: Tensor, groups: Groups, scale: float, dropout_p: float, seed: Tensor | None
    ) -> Tensor:
        T, _three, N, D = qkv.shape
        if seed is not None:
            keys = row_keys_reference(seed, torch.arange(T * N)).view(T, N)
        out = qkv.new_empty(T, N, D)
        saved: list[Tensor | None] = []
        for group in groups:
            S, L = group.sequences, group.length
            # heads first, so that each is copied in long strides
            heads = group.read(qkv).view(S, L, 3, N, D).permute(2, 3, 0, 1, 4)
            heads = heads.clone(memory_format=torch.contiguous_format)
            q, k, v = heads.view(3, N * S, L, D)
            q.mul_(scale)
            penalty = group.places.penalty if group.places else None
            probabilities = _softmax(torch.bmm(q, k.transpose(1, 2)), penalty)
            mask, dropped = None, probabilities
            if seed is not None:
                rows = group.read(keys).view(S, L, N).permute(2, 0, 1).reshape(N * S, L)
                mask = keep_reference(rows, L, dropout_p)
                dropped = probabilities * mask / (1 - dropout_p)
            mixed = torch.bmm(dropped, v)
            group.write(out, mixed.view(N, S, L, D).permute(1, 2, 0, 3))
            saved += [heads, probabilities, mask]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scale, ctx.dropout_p, ctx.shape = groups, scale, dropout_p, qkv.shape
        return out

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)
    def backward(ctx, dout: Tensor):  # type: ignore[override]  # once_differentiable hides the signature
        _T, _three, N, D = ctx.shape
        dqkv = dout.new_empty(ctx.shape)
        saved = iter(ctx.saved_tensors)
        for group in ctx.groups:
            heads, probabilities, mask = next(saved), next(saved), next(saved)
            S, L = group.sequences, group.length
            q, k, v = heads.view(3, N * S, L, D)
            gradient = group.read_or_zero(dout).reshape(S, L, N, D).permute(2, 0, 1, 3).reshape(N * S, L, D)
            dheads = torch.empty_like(heads)
            dq, dk, dv = dheads.view(3, N * S, L, D)
            dprobabilities = torch.bmm(gradient, v.transpose(1, 2))
            dropped = probabilities
            if mask is not None:
                dropped = probabilities * mask / (1 - ctx.dropout_p)
                dprobabilities = dprobabilities * mask / (1 - ctx.dropout_p)
            torch.bmm(dropped.transpose(1, 2), gradient, out=dv)
            dscores = _softmax_backward(dprobabilities, probabilities)
            torch.bmm(dscores, k, out=dq).mul_(ctx.scale)
            torch.bmm(dscores.transpose(1, 2), q, out=dk)
            group.write(dqkv, dheads.view(3, N, S, L, D).permute(2, 3, 0, 1, 4))
        return dqkv, None, None, None, None


attention_on_cpu = _Attention.apply
