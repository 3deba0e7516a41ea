"""Checkpoints in and out: transformers' ALBERT and BERT, TensorFlow's, and jixu's own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
