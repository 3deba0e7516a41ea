"""Continued pretraining over lists of shards, resumable at every checkpoint, in one process or several."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
