"""How sources are read, where they do not say it themselves."""

from __future__ import annotations

from typing import Literal

from data.options import options

TextFormat = Literal["auto", "bert", "document", "lines", "wrapped"]


@options
class SourceRules:
    """How all sources are read."""

    text_format: TextFormat = "auto"
    """Format of .txt files; bert: a sentence a line, an empty line between documents; lines: a document a
    line; wrapped: lines of a fixed width, which are joined."""
    text_field: str | None = None
    """Field or column with the text, or several as title,answer; by default text, content, 正文, 内容, 文本
    or 评论."""
    allow_loopback: bool = False
    """Read URLs of this machine too (127.0.0.1); link-local ones are never read."""


@options
class SourceSpec:
    """One source, and how it is read where that differs from the others."""

    path: str
    """A file, a folder, a glob or a URL."""
    text_format: TextFormat | None = None
    """Format of .txt files."""
    text_field: str | None = None
    """Field or column with the text, or several."""
