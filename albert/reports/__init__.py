"""The report of a run: one self-contained HTML page, and metrics.json beside it."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
