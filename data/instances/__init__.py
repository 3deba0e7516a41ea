"""Training instances: cutting documents, masking, and the shards that hold them."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
