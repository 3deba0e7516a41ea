"""The index of a workspace: versions, runs, statistics, drift and clean-up."""

from data.faces import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
