"""What models score: metrics, intervals, the probe of a start, and intrinsic measures."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
