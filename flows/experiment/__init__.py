"""The recipes that the experiment compares, and its flawed control."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
