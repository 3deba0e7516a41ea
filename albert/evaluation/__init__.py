"""What models score: metrics, intervals, the probe of a start, and intrinsic measures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
