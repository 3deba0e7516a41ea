"""Cleaning of raw text: normalising, personal data, sentences, filters, near duplicates and the guard."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
