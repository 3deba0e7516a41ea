"""Fine-tuning and comparing models on a labelled task under the same seeds, order and budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
