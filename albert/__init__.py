"""Model and learning: continued pretraining and fine-tuning of ALBERT on packed batches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
