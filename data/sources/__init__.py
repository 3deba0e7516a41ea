"""Raw text from files, folders, archives and URLs, document by document."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
