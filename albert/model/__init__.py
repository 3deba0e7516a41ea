"""The encoder from BERT to ALBERT: its shape, layers, heads and pretraining losses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
