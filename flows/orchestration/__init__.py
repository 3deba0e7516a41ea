"""What runs the flows: commands, tasks, processes, slots, the server, artifacts and settings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
