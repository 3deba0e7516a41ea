"""Chinese words: the segmenter, new words of a field, and similar words."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
