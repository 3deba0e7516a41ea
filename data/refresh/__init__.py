"""A refresh: raw text in, a new version of a corpus out, or none if nothing changed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
