"""Continued pretraining: from a checkpoint or random weights, over lists of shards, resumable at every
checkpoint, in one process or in several under torchrun.
"""

from albert.pretraining.failure import Failure, forget_failure, read_failure
from albert.pretraining.running import checkpoint_digest, pretrain
from albert.pretraining.settings import Corpus, PretrainResult, PretrainSettings, read_settings
from albert.pretraining.start import check_start

__all__ = [
    "Corpus",
    "Failure",
    "PretrainResult",
    "PretrainSettings",
    "check_start",
    "checkpoint_digest",
    "forget_failure",
    "pretrain",
    "read_failure",
    "read_settings",
]
