"""Batches of packed instances: a stream over shards, packing, mixtures of corpora, and the loader."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
