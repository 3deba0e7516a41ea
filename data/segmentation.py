"""Chinese words, with jieba: each sentence is segmented once, and every masking scheme uses the same
words.
"""

from __future__ import annotations

import logging
from functools import cache

import jieba

jieba.setLogLevel(logging.WARNING)


@cache
def _segmenter() -> jieba.Tokenizer:
    """The process's own segmenter, loaded at first use (about a second)."""
    segmenter = jieba.Tokenizer()
    segmenter.initialize()
    return segmenter


def split_words(sentence: str) -> list[str]:
    """Words of a sentence in order; joined they are the sentence.

    >>> split_words("继续预训练语言模型")
    ['继续', '预', '训练', '语言', '模型']
    """
    return _segmenter().lcut(sentence)
