"""Document filters: what is too short or hardly Chinese teaches a Chinese model nothing."""

from __future__ import annotations

import re

from data.records import Document

REASONS = ("empty", "too_short", "too_little_chinese")

# the blocks a BERT-style tokenizer treats as Chinese: URO, extensions A-F, compatibility ideographs
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ebef\U0002f800-\U0002fa1f"
_not_han = re.compile(f"[^{HAN}]+")
_space = re.compile(r"\s+")


def han_share(text: str) -> float:
    """Share of Chinese characters among those that are not spaces, in [0, 1]; 0 for the empty text.

    >>> han_share("继续 ab")
    0.5
    """
    return len(_not_han.sub("", text)) / max(len(_space.sub("", text)), 1)


def drop_reason(document: Document, *, min_characters: int, min_han_share: float) -> str | None:
    """Why the document is not to be used, or None."""
    text = "".join(document.sentences)
    if not text:
        return "empty"
    if len(text) < min_characters:
        return "too_short"
    if han_share(text) < min_han_share:
        return "too_little_chinese"
    return None
