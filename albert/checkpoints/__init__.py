"""Checkpoints in and out: transformers' ALBERT and BERT, TensorFlow's, and jixu's own."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
