"""Shape of the encoder, the published sizes, and what they cost. `python -m albert.config` prints a table."""

from albert.config.files import read_config, to_file
from albert.config.presets import PRESETS, preset
from albert.config.shape import AlbertConfig, ConfigError
from albert.config.sizes import Sizes, measure_sizes

__all__ = [
    "PRESETS",
    "AlbertConfig",
    "ConfigError",
    "Sizes",
    "measure_sizes",
    "preset",
    "read_config",
    "to_file",
]
