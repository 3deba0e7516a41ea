"""Larger models from smaller ones: layers that stop sharing parameters, and more layers.

A model that only stops sharing computes the same as before, to the bit. One with more layers does not, but
starts from trained layers, tiled in order as in Gong et al. 2019 (progressive stacking).
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from albert.model.config import AlbertConfig, Share
from albert.model.heads import PretrainingModel
from data.errors import ConfigError


def grow(
    model: PretrainingModel, *, share: Share | None = None, num_hidden_layers: int | None = None
) -> PretrainingModel:
    """Return a model with less sharing or another depth, whose blocks are copies of `model`'s.

    Groups of layers stay as they are. Of layers that share nothing, number l starts as layer l modulo the
    old depth. Raises ConfigError for what would lose parameters.
    """
    config = _grown_config(model.config, share, num_hidden_layers)
    if config == model.config:
        return model
    grown = PretrainingModel(config)
    for part in ("encoder.embedding", "encoder.pooler", "mlm", "sop"):
        grown.get_submodule(part).load_state_dict(model.get_submodule(part).state_dict())
    layers = model.encoder.blocks_of_layer
    for kind, part in enumerate(("attentions", "feed_forwards")):
        new, old = getattr(grown.encoder, part), getattr(model.encoder, part)
        for number, block in enumerate(new):
            place = number if len(new) == len(old) else layers[number % len(layers)][kind]
            block.load_state_dict(old[place].state_dict())
    return grown.train(model.training)


def _grown_config(config: AlbertConfig, share: Share | None, num_hidden_layers: int | None) -> AlbertConfig:
    share = share or config.share
    layers = config.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
    # those with at least as many parameters
    looser = [one for one in get_args(Share) if config.share in (one, "all") or one == "none"]
    if share not in looser:
        raise ConfigError(
            f"share={share!r}: the checkpoint has share={config.share!r}, which can become "
            f"{', '.join(looser)}"
        )
    if layers < config.num_hidden_layers and config.blocks("attention") + config.blocks("ffn") > 2:
        raise ConfigError(
            f"num_hidden_layers={layers}: the checkpoint has {config.num_hidden_layers}, and "
            "layers are only added, unless all share their parameters"
        )
    groups = 1 if share == "none" else config.num_hidden_groups
    return replace(config, share=share, num_hidden_layers=layers, num_hidden_groups=groups)
