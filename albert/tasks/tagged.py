"""Tagged tokens: a TSV row of spaced tokens and tags, lines of a token and its tag, or JSON with entities.

Tags may be of BIO, BIOES or BMES.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from albert.tasks.definition import Task
from albert.tasks.examples import Found, TaggedExample, read_lines, suffix_of
from albert.tasks.tables import OBJECTS, Row, cell_of, object_rows, values_of

_TAG = re.compile(r"O|[BI]-\S+")
_GAP = re.compile(r"\s*$|-DOCSTART-")  # CoNLL begins a file or document with the latter
_AS_BIO = {"S-": "B-", "M-": "I-", "E-": "I-"}


def read_tagged(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield the examples of a file. Raises InputError if it is missing."""
    known = {"", *kinds_of(task)} if task.labels else None  # O has no kind

    def example(row: Row, number: int) -> TaggedExample:
        values = values_of(row)
        tokens = [*map(str, values.get("tokens") or values.get("text") or "")]
        if not tokens:
            raise ValueError("no text and no tokens")
        tags = [as_bio(tag) for tag in _tags_of(values, tokens)] if is_labelled else ["O"] * len(tokens)
        _check(tokens, tags, known)
        own = cell_of(values, "id") or str(number)
        return TaggedExample(tuple(tokens), tuple(tags), own, cell_of(values, task.group))

    read = _READERS.get(suffix_of(path), _rows_of_table)
    for at, row in enumerate(read(path)):
        yield f"{path}, row {row[0]}", partial(example, row, at)


def kinds_of(task: Task) -> set[str]:
    """The kinds of entities that a task lists, as they are or as whole tags."""
    return {as_bio(label)[2:] if _is_tag(label) else label for label in task.labels or ()} - {""}


def _rows_of_table(path: Path) -> Iterator[Row]:
    """Yield rows of tokens and tags, both separated by spaces, after a header if there is one."""
    lines = read_lines(path)
    first = next(lines, "")
    tokens, _, tags = first.partition("\t")
    # names of columns are neither several tokens nor tags
    is_row = " " in tokens.strip() or (tags.strip() != "" and all(map(_is_tag, tags.split())))
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip() and (number > 1 or is_row):
            tokens, _, tags = line.partition("\t")
            # single spaces separate characters; a character that is a space leaves an empty part
            spaced = [token or " " for token in tokens.strip(" ").split(" ")]
            yield number, {"tokens": spaced, "tags": tags.split()}


def _rows_of_lines(path: Path) -> Iterator[Row]:
    """Yield sentences, which empty lines separate, with the number of their first line."""
    for is_gap, lines in groupby(enumerate(read_lines(path), 1), key=lambda one: bool(_GAP.match(one[1]))):
        if not is_gap:
            numbers, texts = zip(*lines, strict=True)
            tokens, tags = zip(*map(_token_and_tag, texts), strict=True)
            yield numbers[0], {"tokens": tokens, "tags": tags}


def _token_and_tag(line: str) -> tuple[str, str]:
    """The first and the last part of a line; the token may be a space."""
    token, *others = line.split()
    if not others and line[0].isspace():
        return line[0], token
    return token, others[-1] if others else ""


# by suffix; of other files each row is a sentence
_READERS = {
    **dict.fromkeys(OBJECTS, object_rows),
    **dict.fromkeys((".txt", ".conll", ".bio", ".bmes", ".bioes", ".char"), _rows_of_lines),
}


def _tags_of(row: Mapping[str, Any], tokens: Sequence[str]) -> list[str]:
    """The tags of a row, its own or those of its entities."""
    if "tokens" in row:
        return [*map(str, row.get("tags", row.get("labels", row.get("ner_tags", ()))))]
    label = row.get("label", row.get("entities"))
    if label is None and row.get("annotation_id") and list not in map(type, row.values()):
        label = []  # Label Studio writes none for an annotated text without entities
    if not isinstance(label, dict | list):
        raise ValueError("no entities under 'label'")
    text, tags = "".join(tokens), ["O"] * len(tokens)
    for kind, begin, end, words in _entities(label):
        words = text[begin:end] if words is None else words
        if not 0 <= begin < end <= len(text) or text[begin:end].split() != words.split():
            raise ValueError(f"{words!r} is not at {begin} to {end - 1}")
        if set(tags[begin:end]) != {"O"}:
            raise ValueError(f"{words!r} overlaps another entity")
        tags[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
    return tags


def _entities(label: dict[str, Any] | list[Any]) -> Iterator[tuple[str, int, int, str | None]]:
    """Yield the kind of each entity, where it begins and ends, and its words if the format has them."""
    if isinstance(label, dict):  # CLUENER's {kind: {words: [[first, last]]}}
        for kind, entities in label.items():
            for words, places in entities.items():
                yield from ((kind, first, last + 1, words) for first, last in places)
        return
    for one in label:
        if isinstance(one, dict) and "entity" in one:  # CMeEE's
            begin, words = one["start_idx"], one["entity"]
            yield one["type"], begin, begin + len(words), words
        elif isinstance(one, dict):  # Label Studio's JSON-MIN
            # its words have single spaces, and \n in place of a line's end
            words = one["text"].replace("\\n", " ") if "text" in one else None
            yield from ((kind, one["start"], one["end"], words) for kind in one["labels"])
        else:  # doccano's
            yield one[2], one[0], one[1], None


def as_bio(tag: str) -> str:
    """A tag of BIOES or BMES as BIO has it.

    >>> [as_bio(tag) for tag in ("S-LOC", "B-LOC", "M-LOC", "E-LOC", "O")]
    ['B-LOC', 'B-LOC', 'I-LOC', 'I-LOC', 'O']
    """
    return _AS_BIO.get(tag[:2], tag[:2]) + tag[2:]


def _is_tag(tag: str) -> bool:
    return _TAG.fullmatch(as_bio(tag)) is not None


def _check(tokens: Sequence[str], tags: Sequence[str], kinds: Collection[str] | None) -> None:
    if len(tokens) != len(tags):
        raise ValueError(f"{len(tokens)} tokens, {len(tags)} tags")
    before = "O"
    for tag in tags:
        if not _is_tag(tag) or (kinds is not None and tag[2:] not in kinds):
            raise ValueError(f"unknown tag {tag!r}")
        if tag.startswith("I-") and before[2:] != tag[2:]:
            raise ValueError(f"tag {tag!r} follows {before!r}: an entity begins with B-")
        before = tag
