"""Examples of labelled tasks, and the lines of the files they come from, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.errors import InputError


@dataclass(frozen=True, slots=True)
class Example:
    """Of kinds single, pair, regression and similarity. A number is kept as its text."""

    text: str
    pair: str | None
    label: str

    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    def describe(self) -> str:
        return " | ".join(self.texts())


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage, and the answers to choose from."""

    passage: str
    question: str
    choices: tuple[str, ...]
    answer: int  # number of the right one, from 0

    def texts(self) -> tuple[str, ...]:
        return self.passage, self.question

    def describe(self) -> str:
        return f"{self.passage[-80:]} | {self.question} | {' / '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question whose answer stands in a passage."""

    id: str
    passage: str
    question: str
    answers: tuple[str, ...]  # any is right; none: the passage does not answer it
    starts: tuple[int, ...]  # characters of the passage at which the answers begin

    def texts(self) -> tuple[str, ...]:
        return self.passage, self.question

    def describe(self) -> str:
        return f"{self.question} | {self.passage[:80]}"


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """Tokens (characters, for Chinese) and the tag of each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]

    def texts(self) -> tuple[str, ...]:
        return (self.describe(),)

    def describe(self) -> str:
        return "".join(self.tokens) if all(len(t) == 1 for t in self.tokens) else " ".join(self.tokens)


AnyExample = Example | ChoiceExample | SpanExample | TaggedExample


@dataclass(frozen=True, slots=True)
class Split:
    """The examples of one file, and what in it could not be used."""

    path: Path
    examples: tuple[AnyExample, ...]
    skipped: tuple[str, ...]  # one line a row: where and why


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
