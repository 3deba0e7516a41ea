"""Weights that start from a corpus's statistics instead of chance.

A random encoder spends its first millions of tokens on which words are frequent, which resemble each other,
and that neighbours matter. All three can be counted, and set:

- the MLM head's bias to the logarithm of the frequencies;
- the word table to given vectors, in all but the last 2F dimensions;
- the position table to F sines and cosines in those, and most heads of each layer to queries and keys that
  find the token at one distance: with p(t) the sines and cosines of position t there is a rotation R with
  R p(t) = p(t + d) (Vaswani et al. 2017, section 3.5), so the query R p(t) and the key p(s) agree most
  where s = t + d.

E = embedding size, H = hidden size, N = heads, D = head dim, V = vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from albert.model.config import AlbertConfig
from albert.model.encoder import SelfAttention
from albert.model.heads import PretrainingModel

_WAVES = 13  # F, where D has room for as many sines and cosines
# distances that heads find; the last sixth of the heads, and any beyond these, stay random
_DISTANCES = (-1, 1, -2, 2, -3, 3, -4, 4, -6, 6, -8, 8, -12, 12)
_WORD_DEVIATION = 0.1  # of the word table: what it says must outlast the first steps
_POSITION_SHARE = 0.3  # of the squared length of a word and its position
_SHARPNESS = 8.0  # nats by which the found token's score exceeds others'


def start_from_corpus(
    model: PretrainingModel, vectors: np.ndarray, frequencies: np.ndarray, *, seed: int
) -> None:
    """Set a new model's weights after a corpus: word vectors [V, `word_width`], frequencies [V] above 0."""
    generator = torch.Generator().manual_seed(seed)
    embedding, width = model.encoder.embedding, vectors.shape[1]
    waves = (embedding.word.shape[1] - width) // 2
    frequency = _frequencies(waves)
    with torch.no_grad():
        model.mlm.bias.copy_(torch.from_numpy(np.log(frequencies * len(frequencies))))
        turned = torch.from_numpy(vectors) @ _orthonormal(width, width, generator)
        noise = 0.1 * torch.randn(turned.shape, generator=generator)
        embedding.word.zero_()
        embedding.word[:, :width] = _WORD_DEVIATION * (math.sqrt(width) * turned + noise)
        embedding.token_type.zero_()
        ratio = _POSITION_SHARE / (1 - _POSITION_SHARE)
        amplitude = _WORD_DEVIATION * math.sqrt(width * ratio / waves)
        embedding.position.zero_()
        embedding.position[:, width:] = amplitude * _positions(len(embedding.position), frequency)
        space = _hidden_space(model, generator)
        for attention in model.encoder.attentions:
            assert isinstance(attention, SelfAttention)
            _find_neighbours(attention, space[:, :width], space[:, width:], frequency, generator)


def word_width(config: AlbertConfig) -> int:
    """The dimensions of the word table that are left for words."""
    head_dim = config.hidden_size // config.num_attention_heads
    return config.embedding_size - 2 * min(_WAVES, head_dim // 2, config.embedding_size // 4)


def _frequencies(waves: int) -> Tensor:
    """Angles a step [F], spread evenly but without a common period (multiples of the golden ratio)."""
    golden = (math.sqrt(5) - 1) / 2
    return math.pi * ((torch.arange(1, waves + 1, dtype=torch.float64) * golden) % 1).float()


def _positions(count: int, frequency: Tensor) -> Tensor:
    """Cosines, then sines, [count, 2F]."""
    angles = torch.arange(count)[:, None] * frequency
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _rotation(distance: int, frequency: Tensor) -> Tensor:
    """R [2F, 2F] with R p(t) = p(t + distance)."""
    cos, sin = (distance * frequency).cos().diag(), (distance * frequency).sin().diag()
    return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])


def _hidden_space(model: PretrainingModel, generator: torch.Generator) -> Tensor:
    """The directions [H, E] in the encoder's states of the embedding's dimensions, orthonormal."""
    projection = model.encoder.embedding.projection
    H, E = model.config.hidden_size, model.config.embedding_size
    if projection is None:
        return torch.eye(H)
    space = _orthonormal(H, E, generator)
    projection.weight.copy_(math.sqrt(H / E) * space)
    return space


def _find_neighbours(
    attention: SelfAttention, words: Tensor, places: Tensor, frequency: Tensor, generator: torch.Generator
) -> None:
    """Set most heads to find the token at a distance, and the values of all to parts of its word vector.

    `words` [H, E - 2F] and `places` [H, 2F] are the directions of words and of positions.
    """
    (H, width), N, D, waves = words.shape, attention.heads, attention.head_dim, len(frequency)
    query, key, value = attention.query_key_value.weight.view(3, N, D, H)
    # states have length sqrt(H), so that a sine and a cosine have this squared length together
    squared = H * _POSITION_SHARE / waves
    scale = math.sqrt(_SHARPNESS * math.sqrt(D) / (waves * squared))
    for head, distance in enumerate(_DISTANCES[: N - max(N // 6, 1)]):
        query[head].zero_()
        key[head].zero_()
        query[head, : 2 * waves] = scale * _rotation(distance, frequency) @ places.T
        key[head, : 2 * waves] = scale * places.T
    # nearly orthonormal maps: values keep the length of words, outputs have half of it
    drawn = torch.randn(N, D, width, generator=generator) / math.sqrt(width)
    value.copy_(drawn @ words.T)
    attention.output.weight.copy_(0.5 * torch.randn(H, H, generator=generator) / math.sqrt(H))


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Random orthonormal columns, [rows, columns]."""
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].float()
