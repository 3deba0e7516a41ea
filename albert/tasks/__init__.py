"""Labelled tasks, and their examples in the formats of their publishers."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
