"""Fine-tuning and comparing models on a labelled task under the same seeds, order and budget."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
