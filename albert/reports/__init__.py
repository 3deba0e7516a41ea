"""The report of a run: one self-contained HTML page, and metrics.json beside it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
