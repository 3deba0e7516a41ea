"""A classifier on the mean of an encoder's states, which no class of transformers reads a label from.

This file lies beside the weights of such a model: transformers' Auto classes open it with
`trust_remote_code=True`. S = sequences, L = length, H = hidden size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class PooledConfig(PretrainedConfig):
    """The encoder's own config, and what is read of its states: "mean", or "cls+mean"."""

    model_type = "jixu"
    encoder: dict[str, Any] | None = None
    pooling: str = "mean"


class PooledModel(PreTrainedModel):
    """Scores of labels, a number, or a score for each choice."""

    config_class = PooledConfig

    def __init__(self, config: PooledConfig):
        super().__init__(config)
        inner = AutoConfig.for_model(**(config.encoder or {}))
        self.encoder_name = inner.model_type  # its tensors are named as in transformers' own classes
        setattr(self, self.encoder_name, AutoModel.from_config(inner))
        self.classifier = nn.Linear(
            inner.hidden_size * len(config.pooling.split("+")), config.num_labels or 1
        )
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """`logits` [S, labels] for ids [S, L], or [S, choices] for the choices' [S, choices, L]."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        flat = [values.flatten(0, -2) for values in (input_ids, attention_mask, token_type_ids)]
        out = getattr(self, self.encoder_name)(*flat)
        inside = flat[1].unsqueeze(-1)
        pooled = (out.last_hidden_state * inside).sum(1) / inside.sum(1)  # [S, H]
        if self.config.pooling == "cls+mean":
            pooled = torch.cat([out.pooler_output, pooled], dim=-1)
        logits = self.classifier(pooled)
        return SequenceClassifierOutput(
            logits=logits.view(input_ids.shape[:-1]) if input_ids.dim() > 2 else logits
        )
