"""Model and learning: continued pretraining and fine-tuning of ALBERT on packed batches."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
