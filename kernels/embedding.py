"""Token embedding: word, type and position rows summed, normalised and projected to the encoder's width.

Lan et al. 2020, section 3.1 (factorised embedding). T = packed tokens, V = vocabulary, E = embedding size,
H = hidden size, P = positions. Two orders exist: `google` normalises at E and then projects; `bright`
(albert_zh) projects the words, adds types and positions at H and normalises there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear


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


def embed(
    input_ids: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor,
    tables: Tables,
    norm: Norm,
    projection: Projection | None,
    layout: Literal["google", "bright"] = "google",
) -> Tensor:
    """Encoder input of every packed token. Ids [T] int64. Returns [T, H] ([T, E] without a projection)."""
    return embed_reference(input_ids, token_type_ids, position_ids, tables, norm, projection, layout)
