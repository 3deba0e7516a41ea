"""Labelled examples, as the files of each kind of task hold them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
