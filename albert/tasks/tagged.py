"""Tagged tokens: a TSV row of spaced tokens and tags, lines of a token and its tag, or JSON with entities.

Tags may be of BIO, BIOES or BMES.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from albert.tasks.definition import Task
from albert.tasks.examples import Found, TaggedExample, read_lines, suffix_of
from albert.tasks.tables import cell_of, json_rows
from data.errors import InputError

_TAG = re.compile(r"O|[BI]-\S+")
_GAP = re.compile(r"\s*$|-DOCSTART-")  # CoNLL begins a file or document with the latter
_AS_BIO = {"S-": "B-", "M-": "I-", "E-": "I-"}
# number, tokens, their tags or what is wrong, and what else its row holds
Sentence = tuple[int, list[str], list[str] | str, dict[str, Any]]


def read_tagged(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield the examples of a file. Raises InputError if it is missing."""
    # labels are kinds of entities, or whole tags; O has no kind
    known = task.labels and {"", *task.labels, *(as_bio(tag)[2:] for tag in task.labels if _is_tag(tag))}
    read = _READERS.get(suffix_of(path), _sentences_of_rows)
    for at, (number, tokens, tags, row) in enumerate(read(path)):
        if isinstance(tags, str) and (is_labelled or not tokens):
            yield f"{path}, row {number}", tags
            continue
        tags = [as_bio(tag) for tag in tags] if is_labelled else ["O"] * len(tokens)
        problem = _problem(tokens, tags, known)
        own = TaggedExample(
            tuple(tokens), tuple(tags), cell_of(row, "id") or str(at), cell_of(row, task.group)
        )
        yield f"{path}, row {number}", problem or own


def _sentences_of_rows(path: Path) -> Iterator[Sentence]:
    """Yield rows of tokens and tags, both separated by spaces, after a header if there is one."""
    lines = read_lines(path)
    first = next(lines, "")
    header = first.split("\t")
    if len(header) > 2:
        raise InputError(
            f"{path}: its header has {len(header)} columns; expected two, tokens and tags separated by "
            "spaces (or a .txt file with a token and its tag on each line)"
        )
    # a first line that holds tags, or tokens alone, is a row
    tags_of_first = "".join(header[1:]).split()
    is_row = all(map(_is_tag, tags_of_first)) if tags_of_first else " " in header[0].strip()
    for number, line in enumerate(chain([first], lines), 1):
        if line.strip() and (number > 1 or is_row):
            cells = line.split("\t")
            tokens, tags = (cells[0], cells[1]) if len(cells) == 2 else (line, "")
            # single spaces separate characters; a character that is a space leaves an empty part
            yield number, [token or " " for token in tokens.strip(" ").split(" ")], tags.split(), {}


def _sentences_of_lines(path: Path) -> Iterator[Sentence]:
    """Yield sentences, which empty lines separate, with the number of their first line."""
    for is_gap, lines in groupby(enumerate(read_lines(path), 1), key=lambda one: bool(_GAP.match(one[1]))):
        if not is_gap:
            numbers, texts = zip(*lines, strict=True)
            rows = [_token_and_tag(text) for text in texts]
            yield numbers[0], [token for token, _ in rows], [tag for _, tag in rows], {}


def _token_and_tag(line: str) -> tuple[str, str]:
    """The first and the last part of a line; the token may be a space."""
    token, *others = line.split()
    if not others and line[0].isspace():
        return line[0], token
    return token, others[-1] if others else ""


def _sentences_of_json(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of JSON lines or an array: texts with entities, or lists of tokens and tags."""
    for number, row in json_rows(path):
        if isinstance(row, str):
            yield number, [], row, {}
        else:
            yield number, *_tokens_of(row), row


# by suffix; of other files each row is a sentence
_READERS = {
    **dict.fromkeys((".json", ".jsonl"), _sentences_of_json),
    **dict.fromkeys((".txt", ".conll", ".bio", ".bmes", ".bioes", ".char"), _sentences_of_lines),
}


def _tokens_of(row: dict[str, Any]) -> tuple[list[str], list[str] | str]:
    if isinstance(tokens := row.get("tokens"), list):
        named = row.get("tags", row.get("labels", row.get("ner_tags")))
        return [*map(str, tokens)], [*map(str, named)] if isinstance(named, list) else []
    if isinstance(text := row.get("text"), str) and text:
        label = row.get("label")
        if label is None and row.get("annotation_id") and list not in map(type, row.values()):
            label = []  # Label Studio writes none for an annotated text without entities
        return list(text), _tags_of(text, label)
    return [], "no text and no tokens"


def _tags_of(text: str, label: object) -> list[str] | str:
    """The tags of the characters of a text with these entities, or their fault."""
    if not isinstance(label, dict | list):
        return "no entities under 'label'"
    tags = ["O"] * len(text)
    try:
        for kind, begin, end, words in _entities(label):
            words = text[begin:end] if words is None else words
            if not 0 <= begin < end <= len(text) or text[begin:end] != words:
                return f"{words!r} is not at {begin} to {end - 1}"
            if set(tags[begin:end]) != {"O"}:
                return f"{words!r} overlaps another entity"
            tags[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
    except (KeyError, TypeError, ValueError):
        return "its entities are not as CLUENER, doccano or Label Studio has them"
    return tags


def _entities(label: dict[str, Any] | list[Any]) -> Iterator[tuple[str, int, int, str | None]]:
    """Yield the kind of each entity, where it begins and ends, and its words if the format has them."""
    if isinstance(label, dict):  # CLUENER's {kind: {words: [[first, last]]}}
        for kind, entities in label.items():
            for words, places in entities.items() if isinstance(entities, dict) else ():
                yield from ((kind, first, last + 1, words) for first, last in places)
        return
    for one in label:
        if isinstance(one, dict):  # Label Studio's JSON-MIN
            yield from ((kind, one["start"], one["end"], None) for kind in one["labels"])
        else:  # doccano's
            begin, end, kind = one
            yield kind, begin, end, None


def as_bio(tag: str) -> str:
    """A tag of BIOES or BMES as BIO has it.

    >>> [as_bio(tag) for tag in ("S-LOC", "B-LOC", "M-LOC", "E-LOC", "O")]
    ['B-LOC', 'B-LOC', 'I-LOC', 'I-LOC', 'O']
    """
    return _AS_BIO.get(tag[:2], tag[:2]) + tag[2:]


def _is_tag(tag: str) -> bool:
    return _TAG.fullmatch(as_bio(tag)) is not None


def _problem(tokens: Sequence[str], tags: Sequence[str], kinds: Collection[str] | None) -> str | None:
    if len(tokens) != len(tags):
        return f"{len(tokens)} tokens, {len(tags)} tags"
    before = "O"
    for tag in tags:
        if not _is_tag(tag) or (kinds is not None and tag[2:] not in kinds):
            return f"unknown tag {tag!r}"
        if tag.startswith("I-") and before[2:] != tag[2:]:
            return f"tag {tag!r} follows {before!r}: an entity begins with B-"
        before = tag
    return None
