"""Tagged tokens: a TSV row of spaced tokens and tags, or CoNLL lines of a token and its tag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from albert.tasks.examples import TaggedExample, read_lines, suffix_of
from data.errors import InputError

_TAG = re.compile(r"O|[BI]-\S+")


def read_tagged(
    path: Path, labels: Sequence[str] | None, is_labelled: bool = True
) -> tuple[list[TaggedExample], list[str]]:
    """The examples of a file, and the rows that could not be used. Raises InputError if it is missing."""
    examples: list[TaggedExample] = []
    skipped: list[str] = []
    rows = _sentences_of_lines if suffix_of(path) in (".txt", ".conll", ".bio") else _sentences_of_rows
    for at, (number, tokens, tags) in enumerate(rows(path)):
        if not is_labelled:
            tags = ["O"] * len(tokens)
        problem = _problem(tokens, tags, labels)
        if problem:
            skipped.append(f"{path}, row {number}: {problem}")
        else:
            examples.append(TaggedExample(tuple(tokens), tuple(tags), str(at)))
    return examples, skipped


def _sentences_of_rows(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield rows of tokens and tags, both separated by spaces, after a header."""
    lines = read_lines(path)
    header = next(lines, "").split("\t")
    if len(header) > 2:
        raise InputError(
            f"{path}: its header has {len(header)} columns; expected two, tokens and tags separated by "
            "spaces (or a .txt file with a token and its tag on each line)"
        )
    for number, line in enumerate(lines, 2):
        if line.strip():
            cells = line.split("\t")
            tokens, tags = (cells[0], cells[1]) if len(cells) == 2 else (line, "")
            # single spaces separate characters; a character that is a space leaves an empty part
            yield number, [token or " " for token in tokens.strip(" ").split(" ")], tags.split()


def _sentences_of_lines(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield sentences, which empty lines separate, with the number of their first line."""
    tokens: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split()
        if parts:
            if not tokens:
                first = number
            if len(parts) == 1 and line[0].isspace():  # the token is a space
                parts = [line[0], *parts]
            tokens.append(parts[0])
            tags.append(parts[-1] if len(parts) > 1 else "")
        elif tokens:
            yield first, tokens, tags
            tokens, tags = [], []
    if tokens:
        yield first, tokens, tags


def _problem(tokens: Sequence[str], tags: Sequence[str], labels: Sequence[str] | None) -> str | None:
    if len(tokens) != len(tags):
        return f"{len(tokens)} tokens, {len(tags)} tags"
    before = "O"
    for tag in tags:
        if not _TAG.fullmatch(tag) or (labels is not None and tag not in labels):
            return f"unknown tag {tag!r}"
        if tag.startswith("I-") and before[2:] != tag[2:]:
            return f"tag {tag!r} follows {before!r}: an entity begins with B-"
        before = tag
    return None
