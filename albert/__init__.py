"""Model and learning: continued pretraining and fine-tuning of ALBERT on packed batches."""

from albert.batch import Batch
from albert.checkpoints import load_pretrained
from albert.config import AlbertConfig, ConfigError
from albert.heads import PretrainingModel, PretrainingOutput, SequenceClassifier

__all__ = [
    "AlbertConfig",
    "Batch",
    "ConfigError",
    "PretrainingModel",
    "PretrainingOutput",
    "SequenceClassifier",
    "load_pretrained",
]
