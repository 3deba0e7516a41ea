"""Checkpoints in and out: transformers' ALBERT and BERT, TensorFlow's, and jixu's own. Every tensor is
accounted for. `python -m albert.checkpoints` converts, inspects and compares them.
"""

from albert.checkpoints.loading import (
    LoadedCheckpoint,
    LoadReport,
    load_model,
    load_pretrained,
    new_model,
    read_checkpoint,
)
from albert.checkpoints.saving import TOKENIZER_FILES, save_model
from albert.checkpoints.source import CONFIG_FILE, WEIGHTS_FILE, Source, find_source, names_checkpoint

__all__ = [
    "CONFIG_FILE",
    "TOKENIZER_FILES",
    "WEIGHTS_FILE",
    "LoadReport",
    "LoadedCheckpoint",
    "Source",
    "find_source",
    "load_model",
    "load_pretrained",
    "names_checkpoint",
    "new_model",
    "read_checkpoint",
    "save_model",
]
