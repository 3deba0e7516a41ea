"""Decode bytes: byte-order marks first, then UTF-8, then the Chinese encodings.

A line that the file's encoding cannot decode may be in another one.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator, Mapping
from functools import partial

SAMPLE_BYTES = 1 << 18
# the longer mark first: UTF-32's begins with UTF-16's
_MARKS = [
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]
# distinguished by the text they produce
_WITHOUT_MARK = ("gb18030", "big5hkscs", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
# encodings whose line-end bytes mean nothing else, so that lines can be split before decoding
_BY_LINE = ("utf-8", "gb18030", "big5hkscs")
REPLACEMENT = "\ufffd"
_MOST_BROKEN = 0.2  # highest share of replaced characters in damaged UTF-8; above it is no text
_MOST_CONTROL = 0.05  # highest share of control characters in a text
_CHINESE = 0.7  # share of everyday Chinese above which a reading is taken as the right one
_MANY_RARE = 4  # rare characters from which a line may be of another encoding; words have fewer
LONGEST_LINE = 1 << 22  # bytes; a longer line is decoded in pieces
BLOCK = 1 << 16  # bytes read at a time


def _common_characters() -> frozenset[str]:
    """Everyday Chinese: level 1 of GB 2312-80 and of Big5."""
    simplified = bytes(b for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF) for b in (row, cell))
    cells = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    traditional = bytes(b for row in range(0xA4, 0xC7) for cell in cells for b in (row, cell))
    return frozenset(simplified.decode("gb2312", "ignore") + traditional.decode("big5", "ignore"))


COMMON = _common_characters()


def _decode_sample(sample: bytes, encoding: str, *, whole: bool, errors: str = "strict") -> str | None:
    """Decode a sample, whose last character may be cut; None if it cannot be in this encoding."""
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
# other Han, private and replaced characters: what GB18030 makes of Big5, and the reverse
_rare = re.compile(f"[^\0-\u4dff{''.join(COMMON)}\ua000-\udfff\uf900-\ufffc]")
_control = re.compile("[\x01-\x08\x0e-\x1f]")


def _looks_binary(text: str) -> bool:
    return len(_control.findall(text)) > _MOST_CONTROL * len(text)


def _is_damaged(text: str) -> bool:
    """Whether more of the non-ASCII characters were replaced than a text may lose."""
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text.count(REPLACEMENT) > _MOST_BROKEN * foreign


def _best_reading(readings: Mapping[str, str | None]) -> str | None:
    """Return the encoding whose reading is most clearly everyday Chinese, or None."""
    shares = {e: _everyday_share(text) for e, text in readings.items() if text and not _looks_binary(text)}
    best = max(shares, key=lambda encoding: shares[encoding], default=None)
    return best if best and shares[best] > _CHINESE else None


def detect_encoding(sample: bytes, *, whole: bool) -> str | None:
    """Detect the encoding of a text from its first bytes; None if it is no text.

    `whole`: the sample is the whole file. GB18030 and UTF-16 accept almost any bytes, so the encoding that
    reads as everyday Chinese wins. A slightly damaged text keeps its encoding.
    A mixture of encodings counts as "utf-8": `decoded_lines` decodes each line by its own.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    text = _decode_sample(sample, "utf-8", whole=whole)
    if text is not None:
        return None if _looks_binary(text) else "utf-8"
    if best := _best_reading({e: _decode_sample(sample, e, whole=whole) for e in _WITHOUT_MARK}):
        return best
    encodings = ("utf-8", *_WITHOUT_MARK)
    damaged = {e: _decode_sample(sample, e, whole=whole, errors="replace") or "" for e in encodings}
    if best := _best_reading({e: text for e, text in damaged.items() if not _is_damaged(text)}):
        return best
    mixed = "\n".join(_decode_line(line, "utf-8") for line in sample.split(b"\n"))
    if _best_reading({"utf-8": mixed}) and not _is_damaged(mixed):
        return "utf-8"
    text = damaged["utf-8"]
    if text.count(REPLACEMENT) < _MOST_BROKEN * len(text) and not _looks_binary(text):
        return "utf-8"
    return None


def decoded_lines(file: io.BufferedReader, encoding: str) -> Iterator[str]:
    """Yield lines, all with LF at their end except for a last line without one; CRLF and CR end a line too.

    A line longer than LONGEST_LINE comes in pieces. A line in another encoding than the file's is decoded by
    its own; bytes that no encoding decodes become U+FFFD.
    """
    if encoding == "utf-8-sig":
        file.read(len(codecs.BOM_UTF8))
        encoding = "utf-8"
    if encoding in _BY_LINE:
        return _lines_of_blocks(file, encoding)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=None)
    return iter(partial(text.readline, LONGEST_LINE // 4), "")


def _lines_of_blocks(file: io.BufferedReader, encoding: str) -> Iterator[str]:
    pending: list[bytes] = []
    size = 0
    while block := file.read1(BLOCK):
        # a CR at the end may be half of a CRLF
        end = block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1
        if end:
            yield from _decode_block(b"".join([*pending, block[:end]]), encoding)
            pending, size = [], 0
        pending.append(block[end:])
        size += len(block) - end
        if size >= LONGEST_LINE:
            piece, rest = _decode_piece(b"".join(pending), encoding)
            yield from io.StringIO(piece.replace("\r", "\n"))
            pending, size = [rest], len(rest)
    yield from _decode_block(b"".join(pending), encoding)


def _decode_block(block: bytes, encoding: str) -> Iterator[str]:
    """Decode whole lines."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if encoding == "utf-8":
        try:
            return io.StringIO(block.decode())
        except UnicodeDecodeError:
            pass
    return io.StringIO("\n".join(_decode_line(line, encoding) for line in block.split(b"\n")))


def _decode_piece(piece: bytes, encoding: str) -> tuple[str, bytes]:
    """Decode the beginning of a line; return its text and the bytes of a cut last character or line end."""
    half_end = piece[-1:] if piece.endswith(b"\r") else b""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    text = decoder.decode(piece.removesuffix(b"\r"))
    return text, decoder.getstate()[0] + half_end


def _decode_line(line: bytes, encoding: str) -> str:
    """Decode a line in the file's encoding, unless another one reads it better."""
    if line.isascii():
        return line.decode("ascii")
    readings = {e: _decode_sample(line, e, whole=True) for e in dict.fromkeys((encoding, "utf-8"))}
    strict = [text for text in readings.values() if text is not None]
    if encoding != "utf-8" and readings["utf-8"] is None:
        text = readings[encoding] or line.decode(encoding, "replace")
        others = _BY_LINE if len(_rare.findall(text)) >= _MANY_RARE else ()
        if best := _best_reading({e: _decode_sample(line, e, whole=True) for e in others}):
            return line.decode(best)
    if strict:  # hardly anything but UTF-8 is valid UTF-8, but two short words may be
        return strict[0] if len(strict) == 1 else max(strict, key=_everyday_share)
    text = line.decode(encoding, "replace")
    # a wrong encoding yields hardly any Han characters beside the replaced ones
    if 2 * len(_han.findall(text)) > text.count(REPLACEMENT):
        return text
    replaced = {e: line.decode(e, "replace") for e in dict.fromkeys((encoding, *_BY_LINE))}
    return replaced[_best_reading(replaced) or encoding]
