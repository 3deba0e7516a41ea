"""Model and learning: continued pretraining and fine-tuning of ALBERT on packed batches."""

import importlib

_HOMES = {
    "AlbertConfig": "albert.config",
    "Batch": "albert.batch",
    "Comparison": "albert.comparison",
    "ConfigError": "albert.config",
    "FineTuneSettings": "albert.finetuning",
    "PretrainResult": "albert.pretraining",
    "PretrainSettings": "albert.pretraining",
    "PretrainingModel": "albert.heads",
    "PretrainingOutput": "albert.heads",
    "SequenceClassifier": "albert.heads",
    "fine_tune": "albert.comparing",
    "load_pretrained": "albert.checkpoints",
    "pretrain": "albert.pretraining",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: checkpoints and training take seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
