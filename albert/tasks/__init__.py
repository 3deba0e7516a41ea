"""Labelled tasks: what they are, and their examples from the files their publishers give."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
