"""What runs the flows: commands, tasks, processes, slots, the server, artifacts and settings."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
