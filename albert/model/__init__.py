"""The encoder from BERT to ALBERT: its shape, layers, heads and pretraining losses."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
