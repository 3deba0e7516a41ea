"""Bytes to text: byte-order marks first, then UTF-8, then the Chinese encodings, then detection by a
library.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import BinaryIO

import charset_normalizer

SAMPLE_BYTES = 1 << 18
# the longer mark first: UTF-32's begins with UTF-16's
_MARKS = [
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]
# told apart by what they make of the text
_WITHOUT_MARK = ("gb18030", "big5", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
REPLACEMENT = "\ufffd"
_MOST_BROKEN = 0.2  # share of replaced characters up to which a text is damaged UTF-8 rather than no text
_MOST_CONTROL = 0.05  # share of control characters up to which something is text


def _common_characters() -> frozenset[str]:
    """Everyday Chinese: level 1 of GB 2312-80 and of Big5, each ordered by use in its standard."""
    simplified = bytes(b for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF) for b in (row, cell))
    cells = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    traditional = bytes(b for row in range(0xA4, 0xC7) for cell in cells for b in (row, cell))
    return frozenset(simplified.decode("gb2312", "ignore") + traditional.decode("big5", "ignore"))


COMMON = _common_characters()


def _decode_sample(sample: bytes, encoding: str, *, whole: bool) -> str | None:
    """The sample's text, or None if it cannot be in this encoding; a cut last character is no fault."""
    try:
        return codecs.getincrementaldecoder(encoding)("strict").decode(sample, whole)
    except UnicodeDecodeError:
        return None


def _everyday_share(text: str) -> float:
    foreign = [c for c in text if not c.isascii()]
    everyday = sum(c in COMMON or c in "，。！？；：、“”‘’（）《》…—　" for c in foreign)
    # every other character of UTF-32 read as UTF-16 is NUL
    return everyday / max(len(foreign) + text.count("\0"), 1)


_control = re.compile("[\x01-\x08\x0e-\x1f]")


def _looks_binary(text: str) -> bool:
    return len(_control.findall(text)) > _MOST_CONTROL * len(text)


def detect_encoding(sample: bytes, *, whole: bool) -> str | None:
    """The encoding of a text from its first bytes, or None if this is no text.

    `whole` says that the sample is all there is. GB18030 and UTF-16 accept almost any bytes, so of
    the encodings that could be it the one that reads as everyday Chinese is taken. Slightly damaged UTF-8 is
    UTF-8: what is broken is replaced and counted.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    text = _decode_sample(sample, "utf-8", whole=whole)
    if text is not None:
        return None if _looks_binary(text) else "utf-8"
    readings = {e: _decode_sample(sample, e, whole=whole) for e in _WITHOUT_MARK}
    shares = {
        e: _everyday_share(text)
        for e, text in readings.items()
        if text is not None and not _looks_binary(text)
    }
    if shares and max(shares.values()) > 0.7:
        return max(shares, key=lambda encoding: shares[encoding])
    damaged = sample.decode("utf-8", "replace")
    whole_characters = damaged.replace(REPLACEMENT, "")
    if len(whole_characters) > (1 - _MOST_BROKEN) * len(damaged) and not _looks_binary(damaged):
        return "utf-8"
    best = charset_normalizer.from_bytes(sample).best()
    if best is None or _looks_binary(str(best)) or _everyday_share(str(best)) < 0.5:
        return None
    return best.encoding


def decoded_lines(file: BinaryIO, encoding: str) -> Iterator[str]:
    """Lines without their ends, read as they are asked for; LF, CRLF and CR end a line, nothing else does."""
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=None) as text:
        for line in text:
            yield line.rstrip("\n")
