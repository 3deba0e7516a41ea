"""Attention on a CPU: batched matrix products over groups of sequences of like length, forward and backward.

The products run in the dtype of the input, where bf16 doubles the speed or more. What is saved are the heads,
side by side as the products want them, and the probabilities in the input's dtype. T = packed tokens, S =
sequences of a group, L = its longest, N = heads, D = head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# a group's sequences are no shorter than this share of its longest: padding then costs at most a half more
LIKE_LENGTH = 0.8
GROUP_TOKENS = 512  # a smaller group is not worth the calls it takes, and takes shorter sequences in
GROUP_SCORES = 4 * 128**2  # S * L * L at most: what is made for a group then stays in the caches
LOWEST = -1e30  # added to the scores of padding; finite, as a row of nothing else would become NaN


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of like length, padded to the longest where they differ. P = S * L places."""

    sequences: int
    length: int
    begin: int  # first token, where the sequences follow each other and all are of one length
    tokens: Tensor | None  # [t] int64 of the batch; None where they are those from `begin` on
    inside: Tensor | None  # [t] int64, the places of `tokens`
    places: Tensor | None  # [P] int64, the token at each place; padding repeats one of its own sequence
    penalty: Tensor | None  # [S, 1, L] fp32, LOWEST for padding

    def read(self, x: Tensor) -> Tensor:
        """Rows of x [T, ...] at the group's places [P, ...]; whatever stands at padding is finite."""
        if self.places is None:
            return x[self.begin : self.begin + self.sequences * self.length]
        return x.index_select(0, self.places)

    def read_or_zero(self, x: Tensor) -> Tensor:
        """The same with 0 at padding."""
        if self.tokens is None:
            return self.read(x)
        rows = x.new_zeros(self.sequences * self.length, *x.shape[1:])
        return rows.index_copy_(0, self.inside, x.index_select(0, self.tokens))

    def write(self, x: Tensor, rows: Tensor) -> None:
        """Put the rows at the group's places, [S, L, ...] of any strides, to their tokens in x [T, ...]."""
        if self.tokens is None:
            x[self.begin : self.begin + self.sequences * self.length].view(rows.shape).copy_(rows)
        else:
            x.index_copy_(0, self.tokens, rows.flatten(0, 1).index_select(0, self.inside))


Groups = tuple[Group, ...]


def _cut(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Sequence numbers in groups of like length, the longest first; empty sequences are in none."""
    order = sorted((s for s in range(len(lengths)) if lengths[s]), key=lambda s: (-lengths[s], s))
    begin = tokens = 0
    for end, sequence in enumerate(order):
        longest, length = lengths[order[begin]], lengths[sequence]
        is_shorter = length < LIKE_LENGTH * longest and tokens >= GROUP_TOKENS
        if end > begin and (is_shorter or (end - begin + 1) * longest**2 > GROUP_SCORES):
            yield order[begin:end]
            begin, tokens = end, 0
        tokens += length
    if order:
        yield order[begin:]


def group_sequences(cu_seqlens: Tensor) -> Groups:
    """The groups attention works through; the same for every layer."""
    offsets = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in zip(offsets, offsets[1:], strict=False)]
    return tuple(_group(sequences, offsets, lengths) for sequences in _cut(lengths))


def _group(sequences: list[int], offsets: list[int], lengths: list[int]) -> Group:
    S, L = len(sequences), lengths[sequences[0]]
    first = offsets[sequences[0]]
    begins = [offsets[s] for s in sequences]
    if begins == list(range(first, first + S * L, L)) and lengths[sequences[-1]] == L:
        return Group(S, L, first, None, None, None, None)
    start = torch.tensor(begins)[:, None]  # [S, 1]
    length = torch.tensor([lengths[s] for s in sequences])[:, None]
    place = torch.arange(L)
    is_inside = place < length  # [S, L]
    places = (start + torch.minimum(place, length - 1)).flatten()
    inside = is_inside.flatten().nonzero().squeeze(1)
    penalty = None if bool(is_inside.all()) else (~is_inside * LOWEST)[:, None]
    return Group(S, L, first, places[inside], inside, places, penalty)


def _softmax(scores: Tensor, penalty: Tensor | None) -> Tensor:
    """Softmax of scores [N * S, L, L] with the penalty [S, 1, L] of padding, worked out in fp32 or more.

    Rows that do not fill its vectors cost torch's bf16 kernels several times as much.
    """
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if penalty is not None:
        S, _, L = penalty.shape
        exact.view(-1, S, L, L).add_(penalty)
    return torch.softmax(exact, -1, out=exact).to(scores.dtype)


def _softmax_backward(gradient: Tensor, probabilities: Tensor) -> Tensor:
    dtype = gradient.dtype
    # as above
    if gradient.element_size() == 2 and gradient.shape[-1] < 32:
        exact = torch._softmax_backward_data(gradient.float(), probabilities.float(), -1, torch.float32)
        return exact.to(dtype)
    return torch._softmax_backward_data(gradient, probabilities, -1, dtype)


class _Attention(torch.autograd.Function):
    """qkv [T, 3, N, D] -> [T, N, D]."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx, qkv: Tensor, groups: Groups, scale: float, dropout_p: float, generator: torch.Generator | None
    ) -> Tensor:
        T, _three, N, D = qkv.shape
        out = qkv.new_empty(T, N, D)
        saved: list[Tensor | None] = []
        for group in groups:
            S, L = group.sequences, group.length
            # heads first: each is then copied in long strides
            heads = group.read(qkv).view(S, L, 3, N, D).permute(2, 3, 0, 1, 4)
            heads = heads.clone(memory_format=torch.contiguous_format)
            q, k, v = heads.view(3, N * S, L, D)
            q.mul_(scale)
            probabilities = _softmax(torch.bmm(q, k.transpose(1, 2)), group.penalty)
            kept, dropped = None, probabilities
            if generator is not None:
                kept = torch.rand(probabilities.shape, generator=generator, device=qkv.device) >= dropout_p
                dropped = probabilities * kept / (1 - dropout_p)
            mixed = torch.bmm(dropped, v)
            group.write(out, mixed.view(N, S, L, D).permute(1, 2, 0, 3))
            saved += [heads, probabilities, kept]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scale, ctx.dropout_p, ctx.shape = groups, scale, dropout_p, qkv.shape
        return out

    @staticmethod
    @once_differentiable
    @torch.autocast("cpu", enabled=False)
    def backward(ctx, dout: Tensor):
        _T, _three, N, D = ctx.shape
        dqkv = dout.new_empty(ctx.shape)
        saved = iter(ctx.saved_tensors)
        for group in ctx.groups:
            heads, probabilities, kept = next(saved), next(saved), next(saved)
            S, L = group.sequences, group.length
            q, k, v = heads.view(3, N * S, L, D)
            gradient = group.read_or_zero(dout).reshape(S, L, N, D).permute(2, 0, 1, 3).reshape(N * S, L, D)
            dheads = torch.empty_like(heads)
            dq, dk, dv = dheads.view(3, N * S, L, D)
            dprobabilities = torch.bmm(gradient, v.transpose(1, 2))
            dropped = probabilities
            if kept is not None:
                dropped = probabilities * kept / (1 - ctx.dropout_p)
                dprobabilities = dprobabilities * kept / (1 - ctx.dropout_p)
            torch.bmm(dropped.transpose(1, 2), gradient, out=dv)
            dscores = _softmax_backward(dprobabilities, probabilities)
            torch.bmm(dscores, k, out=dq).mul_(ctx.scale)
            torch.bmm(dscores.transpose(1, 2), q, out=dk)
            group.write(dqkv, dheads.view(3, N, S, L, D).permute(2, 3, 0, 1, 4))
        return dqkv, None, None, None, None


def attention_on_cpu(
    qkv: Tensor,
    cu_seqlens: Tensor,
    scale: float | None,
    dropout_p: float,
    seed: int | Tensor,
    groups: Groups | None,
) -> Tensor:
    """As `kernels.attention_packed`; `groups` as of `group_sequences`, or made here."""
    scale = qkv.shape[3] ** -0.5 if scale is None else scale
    generator = torch.Generator(qkv.device).manual_seed(int(seed)) if dropout_p else None
    if groups is None:
        groups = group_sequences(cu_seqlens)
    return _Attention.apply(qkv, groups, scale, dropout_p, generator)
