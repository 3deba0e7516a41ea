"""How sources are read, where they do not say it themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from data.options import options

TextFormat = Literal["auto", "bert", "document", "wrapped"]


@options
class SourceRules:
    """How all sources are read."""

    text_format: Annotated[
        TextFormat,
        Field(
            description="Format of .txt files; bert: a sentence a line, an empty line between documents; "
            "wrapped: lines of a fixed width, which are joined."
        ),
    ] = "auto"
    text_field: Annotated[
        str | None,
        Field(description="Field or column with the text; by default text, content, 正文 or 内容."),
    ] = None
    allow_loopback: Annotated[
        bool, Field(description="Read URLs of this machine too (127.0.0.1); link-local ones are never read.")
    ] = False


@options
class SourceSpec:
    """One source, and how it is read where that differs from the others."""

    path: Annotated[str, Field(description="A file, a folder, a glob or a URL.")]
    text_format: Annotated[TextFormat | None, Field(description="Format of .txt files.")] = None
    text_field: Annotated[str | None, Field(description="Field or column with the text.")] = None
