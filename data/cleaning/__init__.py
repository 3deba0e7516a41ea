"""Cleaning of raw text: normalising, personal data, sentences, filters, near duplicates and the guard."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
