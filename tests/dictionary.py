"""Loads the dictionary of words, for processes that are forked from the one that imports this."""

from data.refresh.build import segmenter

segmenter(())
