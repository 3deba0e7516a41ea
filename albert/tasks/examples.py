"""Examples of labelled tasks, and the lines of the files they come from, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import InputError
from data.sources import SAMPLE_BYTES, detect_encoding


@dataclass(frozen=True, slots=True)
class Example:
    """An example of the kinds single, pair, multilabel, regression and similarity; numbers are text."""

    text: str
    pair: str | None
    label: str
    group: str | None = None  # what it has in common with other examples, such as the law of an article
    id: str = ""  # the row's own, else its number from 0
    labels: tuple[str, ...] | None = None  # of multilabel, each once; `label` joins them

    def label_set(self) -> tuple[str, ...]:
        return (self.label,) if self.labels is None else self.labels

    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    def describe(self) -> str:
        return " | ".join(self.texts())

    def gold(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage, and the answers to choose from."""

    passage: str
    question: str
    choices: tuple[str, ...]
    answer: int  # index of the right choice
    id: str = ""
    group: str | None = None  # no format of choices has one

    def texts(self) -> tuple[str, ...]:
        return self.passage, self.question

    def describe(self) -> str:
        return f"{self.passage[-80:]} | {self.question} | {' / '.join(self.choices)}"

    def gold(self) -> str:
        return self.choices[self.answer]


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question whose answer is a part of a passage."""

    id: str
    passage: str
    question: str
    answers: tuple[str, ...]  # each is right; empty: the passage does not answer the question
    starts: tuple[int, ...]  # offsets of the answers in the passage, in characters
    group: str | None = None  # in place of the passage

    def texts(self) -> tuple[str, ...]:
        return self.passage, self.question

    def describe(self) -> str:
        return f"{self.question} | {self.passage[:80]}"

    def gold(self) -> str:
        return " / ".join(dict.fromkeys(self.answers))


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """Tokens (in Chinese, characters) and their tags."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    id: str = ""
    group: str | None = None

    def texts(self) -> tuple[str, ...]:
        return (self.describe(),)

    def describe(self) -> str:
        return "".join(self.tokens) if all(len(t) == 1 for t in self.tokens) else " ".join(self.tokens)

    def gold(self) -> str:
        return self.entities(self.tags)

    def label_set(self) -> tuple[str, ...]:
        return tuple({tag[2:] for tag in self.tags if tag != "O"})

    def entities(self, tags: Sequence[str]) -> str:
        """The entities that tags of its tokens mean, as text, in order."""
        found = sorted(entities_of(tags), key=lambda entity: entity[1])
        named = (f"{kind} {''.join(self.tokens[begin : end + 1])}" for kind, begin, end in found)
        return ", ".join(named) or "none"


def entities_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first token, last token) of each entity in a sentence's tags, by seqeval's rule for IOB2: a B-
    begins an entity, and so does an I- that does not continue one, as in CoNLL's script. Also of BIOES.

    >>> sorted(entities_of(["B-LOC", "E-LOC", "S-LOC", "O", "I-PER", "I-ORG"]))
    [('LOC', 0, 1), ('LOC', 2, 2), ('ORG', 5, 5), ('PER', 4, 4)]
    >>> entities_of(["B", "I", "O"])  # as a model may have them that transformers' Trainer saved
    {('', 0, 1)}
    """
    found, begin = set(), 0
    for at, (tag, after) in enumerate(zip(tags, [*tags[1:], "O"], strict=True)):
        if tag == "O":
            begin = at + 1
        elif _are_parted(tag, after):
            found.add((tag[2:], begin, at))
            begin = at + 1
    return found


def _are_parted(tag: str, after: str) -> bool:
    """Whether no entity holds both of two tags that follow each other."""
    return tag[2:] != after[2:] or after == "O" or tag[:1] in ("E", "S") or after[:1] in ("B", "S")


AnyExample = Example | ChoiceExample | SpanExample | TaggedExample
# where in a file, and what makes its example or raises ValueError with the reason why there is none
Found = tuple[str, Callable[[], AnyExample]]


# of groups by texts: the share of the examples that one may hold, and how many there must be for an interval
LARGEST, _FEWEST = 0.1, 20


@dataclass(frozen=True)
class Split:
    """The examples of one file, and the rows that could not be used."""

    path: Path
    examples: tuple[AnyExample, ...]
    skipped: tuple[str, ...]  # a line for each row: where and why

    @property
    def label_sets(self) -> list[tuple[str, ...]]:
        """The labels of each example that has one, or any number of them; of tags the types of entities."""
        return [one.label_set() for one in self.examples if isinstance(one, Example | TaggedExample)]

    @cached_property
    def groups(self) -> tuple[int, ...] | None:
        """A number for each example, the same for those of one group or passage, else for those that hang
        together by texts in common, as the pairs (a, b), (b, c) and (c, d) do.

        None if each is alone, or if `entangled` examples hang together.
        """
        names = [getattr(one, "passage", None) if one.group is None else one.group for one in self.examples]
        if None not in names:
            numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
            return tuple(numbers[name] for name in names)
        largest = np.bincount(self._by_texts).max()
        return None if largest == 1 or self.entangled else tuple(self._by_texts.tolist())

    @property
    def entangled(self) -> int:
        """How many examples hang together by texts in common where they are too many for a group, else 0: a
        text that most pairs have, such as an aspect, is a condition and no sample.
        """
        sizes = np.bincount(self._by_texts)
        largest = int(sizes.max())
        too_few = len(sizes) < _FEWEST or largest > LARGEST * len(self.examples)
        return largest if largest > 1 and too_few else 0

    @cached_property
    def _by_texts(self) -> np.ndarray:
        """Connected components of the graph of examples and their texts, [n]."""
        return connected([one.texts() for one in self.examples])


def connected(nodes: Sequence[Sequence[Hashable]], edges: Sequence[Sequence[int]] = ()) -> np.ndarray:
    """A number for each node, the same for those that hang together by what they have in common, or by edges
    between their indices, [n].
    """
    from scipy.sparse import coo_matrix  # they take longer to import than to run
    from scipy.sparse.csgraph import connected_components

    n, numbers = len(nodes), dict[Hashable, int]()
    shared = [
        (at, numbers.setdefault(one, n + len(numbers))) for at, node in enumerate(nodes) for one in node
    ]
    ends, size = np.array([*shared, *edges]).T, n + len(numbers)
    graph = coo_matrix((np.ones(ends.shape[1]), ends), shape=(size, size))
    return connected_components(graph, directed=False)[1][:n]


def label_table(examples: Sequence[AnyExample], labels: Sequence[str]) -> np.ndarray:
    """Whether each example has each label, [n, C] bool."""
    sets = [one.label_set() for one in examples if isinstance(one, Example)]
    return np.array([[label in of_one for label in labels] for of_one in sets])


def suffix_of(path: Path) -> str:
    """The suffix before .gz, in lower case."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def read_lines(path: Path) -> Iterator[str]:
    """Yield lines without line ends, of UTF-8 or a Chinese encoding such as GBK. Raises InputError if the
    file is missing, damaged or no text.
    """
    if not path.is_file():
        raise InputError(f"no file {path}")
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            sample = file.read(SAMPLE_BYTES)
        encoding = detect_encoding(sample, whole=len(sample) < SAMPLE_BYTES)
        if encoding is None:
            raise InputError(f"{path} is not text in a known encoding: save it as UTF-8, a workbook as .csv")
        encoding = "utf-8-sig" if encoding == "utf-8" else encoding
        # a carriage return ends a line only where nothing else does: a text may hold one
        newline = "\n" if b"\n" in sample else None
        with opened(path, "rt", encoding=encoding, newline=newline) as text:
            for line in text:
                number += 1
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        number += error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path} cannot be read: line {number} is not {error.encoding}") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises InputError if it is not JSON."""
    text = "\n".join(read_lines(path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None


def read_parquet(path: Path, labels: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a Parquet file. Raises InputError if it is missing or damaged.

    Labels that Hugging Face's library has numbered get their names back, unless these are none of `labels`; a
    number without a name is None.
    """
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        table = pq.ParquetFile(path).read()
        info = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        rows = table.to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    for column, feature in info.get("info", {}).get("features", {}).items():
        names = _class_names(feature)
        if names and (labels is None or {*names} <= {*labels}):
            for row in rows:
                row[column] = _named(row[column], names)
    return rows


def _class_names(feature: Any) -> Sequence[str]:
    """The names of the classes that a column, or the lists in it, number."""
    if isinstance(feature, list):  # as versions before 4 write it
        return _class_names(feature[0])
    if "feature" in feature:
        return _class_names(feature["feature"])
    return feature.get("names", ()) if feature.get("_type") == "ClassLabel" else ()


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return names[value] if value is not None and 0 <= value < len(names) else None


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of each line that is not empty; None for one that is not JSON."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None
