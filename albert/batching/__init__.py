"""Batches of packed instances: a stream over shards, packing, mixtures of corpora, and the loader."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
