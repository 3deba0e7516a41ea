"""Text of labelled files, plain or gzipped; what cannot be read is told as an InputError."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from data.records import InputError


def suffix_of(path: Path) -> str:
    """The suffix, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def read_lines(path: Path) -> Iterator[str]:
    """Lines without their ends. Raises InputError when the file is missing, damaged or not UTF-8."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (UnicodeDecodeError, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def read_json(path: Path) -> object:
    """The content of a JSON file. Raises InputError when it is none."""
    try:
        return json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not JSON: {error}") from None
