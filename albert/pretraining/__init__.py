"""Continued pretraining over lists of shards, resumable at every checkpoint, in one process or several."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
