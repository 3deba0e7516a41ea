"""From raw Chinese text to instance shards and a catalog of them."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
