"""A refresh: raw text in, a new version of a corpus out, or none if nothing changed."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
