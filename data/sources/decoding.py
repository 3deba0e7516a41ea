"""Bytes to text: byte-order marks first, then UTF-8, then the Chinese encodings, then detection by a
library. A line that the file's encoding cannot decode may be in another one.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from functools import partial
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
_WITHOUT_MARK = ("gb18030", "big5hkscs", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
# in which the bytes of a line end are nothing else, so that lines can be told before they are decoded
_BY_LINE = ("utf-8", "gb18030", "big5hkscs")
REPLACEMENT = "\ufffd"
_MOST_BROKEN = 0.2  # share of replaced characters up to which a text is damaged UTF-8 rather than no text
_MOST_CONTROL = 0.05  # share of control characters up to which something is text
_CHINESE = 0.7  # share of everyday Chinese from which a reading is taken for the right one
LONGEST_LINE = 1 << 22  # bytes; of a longer line, what is decoded at once
_BLOCK = 1 << 16


class Unfinished(str):
    """The beginning of a line longer than LONGEST_LINE; the rest follows as lines of its own."""

    __slots__ = ()


def _common_characters() -> frozenset[str]:
    """Everyday Chinese: level 1 of GB 2312-80 and of Big5, each ordered by use in its standard."""
    simplified = bytes(b for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF) for b in (row, cell))
    cells = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    traditional = bytes(b for row in range(0xA4, 0xC7) for cell in cells for b in (row, cell))
    return frozenset(simplified.decode("gb2312", "ignore") + traditional.decode("big5", "ignore"))


COMMON = _common_characters()


def _decode_sample(sample: bytes, encoding: str, *, whole: bool, errors: str = "strict") -> str | None:
    """The sample's text, or None if it cannot be in this encoding; a cut last character is no fault."""
    try:
        return codecs.getincrementaldecoder(encoding)(errors).decode(sample, whole)
    except UnicodeDecodeError:
        return None


def _everyday_share(text: str) -> float:
    foreign = [c for c in text if not c.isascii()]
    everyday = sum(c in COMMON or c in "，。！？；：、“”‘’（）《》…—　" for c in foreign)
    # every other character of UTF-32 read as UTF-16 is NUL
    return everyday / max(len(foreign) + text.count("\0"), 1)


_han = re.compile("[\u4e00-\u9fff]")
_control = re.compile("[\x01-\x08\x0e-\x1f]")


def _looks_binary(text: str) -> bool:
    return len(_control.findall(text)) > _MOST_CONTROL * len(text)


def _is_damaged(text: str) -> bool:
    """Whether more of what is not ASCII was replaced than a text may have lost."""
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text.count(REPLACEMENT) > _MOST_BROKEN * foreign


def _best_reading(readings: dict[str, str | None]) -> str | None:
    """The encoding whose reading is everyday Chinese, if there is one; of equals the first."""
    shares = {e: _everyday_share(text) for e, text in readings.items() if text and not _looks_binary(text)}
    best = max(shares, key=lambda encoding: shares[encoding], default=None)
    return best if best and shares[best] > _CHINESE else None


def detect_encoding(sample: bytes, *, whole: bool) -> str | None:
    """The encoding of a text from its first bytes, or None if this is no text.

    `whole` says that the sample is all there is. GB18030 and UTF-16 accept almost any bytes, so of
    the encodings that could be it the one that reads as everyday Chinese is taken. A slightly damaged text
    keeps its encoding: what is broken is replaced and counted. Lines in several encodings are "utf-8" too:
    `decoded_lines` looks at each that is not.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    text = _decode_sample(sample, "utf-8", whole=whole)
    if text is not None:
        return None if _looks_binary(text) else "utf-8"
    if best := _best_reading({e: _decode_sample(sample, e, whole=whole) for e in _WITHOUT_MARK}):
        return best
    damaged = {e: _decode_sample(sample, e, whole=whole, errors="replace") for e in ("utf-8", *_WITHOUT_MARK)}
    if best := _best_reading({e: text for e, text in damaged.items() if not _is_damaged(text)}):
        return best
    mixed = "\n".join(_decode_line(line, "utf-8") for line in sample.split(b"\n"))
    if _best_reading({"utf-8": mixed}) and not _is_damaged(mixed):
        return "utf-8"
    text = damaged["utf-8"]
    if text.count(REPLACEMENT) < _MOST_BROKEN * len(text) and not _looks_binary(text):
        return "utf-8"
    best = charset_normalizer.from_bytes(sample).best()
    if best is None or _looks_binary(str(best)) or _everyday_share(str(best)) < 0.5:
        return None
    return best.encoding


def decoded_lines(file: BinaryIO, encoding: str) -> Iterator[str]:
    """Lines without their ends, read as they are asked for; LF, CRLF and CR end a line, nothing else does.

    A line longer than LONGEST_LINE comes in pieces, `Unfinished` but for the last. A line in another encoding
    than the file's is decoded by its own; what no encoding decodes is replaced by U+FFFD.
    """
    if encoding == "utf-8-sig":
        file.read(len(codecs.BOM_UTF8))
        encoding = "utf-8"
    if encoding in _BY_LINE:
        return _lines_of_blocks(file, encoding)
    return _lines_of_stream(file, encoding)


def _lines_of_stream(file: BinaryIO, encoding: str) -> Iterator[str]:
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=None) as text:
        is_open = False
        for line in iter(partial(text.readline, LONGEST_LINE // 4), ""):
            is_open = not line.endswith("\n") and len(line) == LONGEST_LINE // 4
            yield Unfinished(line) if is_open else line.removesuffix("\n")
        if is_open:
            yield ""


def _lines_of_blocks(file: BinaryIO, encoding: str) -> Iterator[str]:
    held: list[bytes] = []
    size, is_open = 0, False
    while block := file.read1(_BLOCK):
        # a CR at the end may be half of a CRLF
        end = block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1
        if end:
            yield from _decode_block(b"".join([*held, block[:end]]), encoding).split("\n")[:-1]
            held, size, is_open = [], 0, False
        held.append(block[end:])
        size += len(block) - end
        if size >= LONGEST_LINE:
            piece, rest = _decode_piece(b"".join(held), encoding)
            *ended, piece = piece.replace("\r", "\n").split("\n")
            yield from ended
            yield Unfinished(piece)
            held, size, is_open = [rest], len(rest), True
    if size or is_open:
        yield from _decode_block(b"".join(held), encoding).removesuffix("\n").split("\n")


def _decode_block(block: bytes, encoding: str) -> str:
    """Text of whole lines, each ended by LF."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if encoding == "utf-8":
        try:
            return block.decode()
        except UnicodeDecodeError:
            pass
    return "\n".join(_decode_line(line, encoding) for line in block.split(b"\n"))


def _decode_piece(piece: bytes, encoding: str) -> tuple[str, bytes]:
    """Text of the beginning of a line, and the bytes of a character or line end cut by its end."""
    half_end = piece[-1:] if piece.endswith(b"\r") else b""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    text = decoder.decode(piece.removesuffix(b"\r"))
    return text, decoder.getstate()[0] + half_end


def _decode_line(line: bytes, encoding: str) -> str:
    """A line's text, in the file's encoding unless another one reads it better."""
    if line.isascii():
        return line.decode("ascii")
    readings = {e: _decode_sample(line, e, whole=True) for e in dict.fromkeys((encoding, "utf-8"))}
    strict = [text for text in readings.values() if text is not None]
    if strict:  # hardly anything but UTF-8 is valid UTF-8, but two short words may be
        return strict[0] if len(strict) == 1 else max(strict, key=_everyday_share)
    text = line.decode(encoding, "replace")
    # in a wrong encoding hardly a Han character comes out beside what is replaced
    if 2 * len(_han.findall(text)) > text.count(REPLACEMENT):
        return text
    replaced = {e: line.decode(e, "replace") for e in dict.fromkeys((encoding, *_BY_LINE))}
    return replaced[_best_reading(replaced) or encoding]
