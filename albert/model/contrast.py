"""Unsupervised SimCSE: a text is read twice under different dropout, and its two mean states are drawn
together, away from those of the batch's other texts (Gao et al. 2021, section 3).

T = packed tokens, S = sequences, H = hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from albert.model.batch import Batch
from albert.model.encoder import Embedding, Encoder, FeedForward, SelfAttention
from albert.model.heads import mean_states, outside_autocast

_TEMPERATURE = 0.05  # appendix D
_DROPOUT = 0.1  # the only difference of the two passes; 0.1 is best in table 3


def ensure_dropout(encoder: Encoder) -> None:
    """Give blocks without dropout some: a published ALBERT may have none, and all its passes are the same."""
    for part in encoder.modules():
        if isinstance(part, (Embedding, SelfAttention, FeedForward)) and part.dropout == 0:
            part.dropout = _DROPOUT


def with_copies(batch: Batch) -> Batch:
    """The batch, then its texts without masks two times over, as one of 3T tokens and 3S sequences."""
    index, labels = batch.masked()
    clean = batch.input_ids.index_copy(0, index, labels)
    cu_seqlens = batch.cu_seqlens
    ends = torch.cat([cu_seqlens[1:] + number * batch.tokens for number in range(3)])
    return Batch(
        input_ids=torch.cat([batch.input_ids, clean, clean]),
        token_type_ids=batch.token_type_ids.repeat(3),
        position_ids=batch.position_ids.repeat(3),
        cu_seqlens=torch.cat([cu_seqlens[:1], ends]).to(cu_seqlens.dtype),
        max_seqlen=batch.max_seqlen,
    )


def contrastive_loss(hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The mean loss of states [2T, H], which hold every text twice; cu_seqlens [2S+1]."""
    with outside_autocast(hidden):
        first, second = F.normalize(mean_states(hidden.float(), cu_seqlens), dim=-1).chunk(2)  # [S, H]
        similarity = first @ second.T / _TEMPERATURE
        return F.cross_entropy(similarity, torch.arange(len(first), device=hidden.device))
