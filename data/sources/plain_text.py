"""How a plain text file was laid out: a document, a sentence a line, or lines wrapped at a fixed width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from data.sources.settings import TextFormat

_CLOSERS = "[”’」』）)\"']*"
_ended = re.compile(f"[。！？!?；;…．：:]{_CLOSERS}$")
_end_inside = re.compile(f"[。！？!?…]{_CLOSERS}(?=[^，、：”’」』）)\"'。！？!?…])")
_marked = re.compile(rf"\W{_CLOSERS}$")
_latin = re.compile("[!-~]")
_first_word = re.compile(r"[!-~]+|\S")
_quoted = re.compile("^(?:> ?)+", re.M)  # by mail
_MIN_WIDTH, _MAX_WIDTH = 30, 160  # columns; e-mail is wrapped at 72 or 76, e-books at 30 to 40 characters
_SLACK = 4  # columns that a wrapped line may be shorter, so that no mark begins a line
_LEAST = 8  # wrapped lines that prove a width
# a line of a paragraph that is too long: most texts are known by it not to be wrapped
_too_wide = re.compile(rf"^[^\n]{{{_MAX_WIDTH + _SLACK},}}\S\n\S", re.M)


def find_format(lines: Sequence[str]) -> TextFormat:
    """Decide by a file's first lines how it is read.

    A sentence a line: blank lines stand between documents of several lines, at least 70% of the lines end as
    a sentence does, and hardly a line holds two. An ordinary text has paragraphs of several sentences.
    """
    written = [line.strip() for line in lines if line.strip()]
    blocks = [block for block in "\n".join(line.strip() for line in lines).split("\n\n") if block.strip()]
    if len(blocks) > 1 and len(written) >= 2 * len(blocks):
        ended = sum(bool(_ended.search(line)) for line in written)
        several = sum(bool(_end_inside.search(line)) for line in written)
        if ended >= 0.7 * len(written) and several <= 0.01 * len(written):
            return "bert"
    unquoted = _quoted.sub("", "\n".join(lines)).split("\n")
    return "wrapped" if _wrap_width(_inner_lines(unquoted)) else "document"


def _columns(line: str) -> int:
    """Measure the width of a line; a Chinese character takes two columns."""
    return len(line.rstrip().encode("gb18030", "replace"))


class _Line(NamedTuple):
    text: str
    columns: int
    needed: int  # columns that it would have with the next word, which is a character in Chinese


def _inner_lines(lines: Sequence[str]) -> list[_Line | None]:
    """Find each line that is followed by another one of its paragraph, neither blank nor indented."""
    inner: list[_Line | None] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        word = _first_word.match(following)
        columns = _columns(line)
        inner.append(_Line(line.rstrip(), columns, columns + _columns(word[0])) if columns and word else None)
    return inner


def _wrap_width(inner: Sequence[_Line | None]) -> int | None:
    """Find the width at which lines were wrapped: a next word would pass it, and most cut a sentence."""
    followed = [line for line in inner if line]
    widths = sorted(line.columns for line in followed)
    width = widths[len(widths) * 9 // 10] if len(widths) >= _LEAST else 0
    if not _MIN_WIDTH <= width <= _MAX_WIDTH or widths[-1] > width + _SLACK:
        return None
    full = [line for line in followed if line.needed > width - _SLACK + 1]
    cut = sum(not _marked.search(line.text) for line in full)
    return width if len(full) >= 0.8 * len(followed) and cut >= 0.5 * len(full) else None


def join_wrapped(text: str) -> str:
    """Join the lines of each paragraph of a text wrapped at a fixed width; unquote those of mail.

    >>> join_wrapped("继续预训练用同一领域的文本再训练一个公开的模\\n型，" * 8 + "\\n完。").count("\\n")
    1
    """
    unquoted = _quoted.sub("", text)
    if text.count("\n") < _LEAST or _too_wide.search(unquoted):
        return text
    lines = unquoted.split("\n")
    inner = _inner_lines(lines)
    width = _wrap_width(inner)
    if width is None:
        return text
    parts: list[str] = []
    for line, known, following in zip(lines, inner, [*lines[1:], ""], strict=True):
        if known is None or known.needed <= width - _SLACK + 1:
            parts.append(line + "\n")
        else:
            is_latin = _latin.match(known.text[-1]) and _latin.match(following)
            parts.append(known.text + (" " if is_latin else ""))
    return "".join(parts)[:-1]
