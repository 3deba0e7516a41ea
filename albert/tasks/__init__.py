"""Labelled tasks: what they are, and their examples from the files their publishers give."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
