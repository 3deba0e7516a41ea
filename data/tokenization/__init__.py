"""Vocabularies: BERT's WordPiece, SentencePiece's unigram, and added terms."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
