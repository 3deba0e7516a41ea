"""Questions about a passage, in the JSON of SQuAD (also DRCD), CMRC 2018, C3 and RACE; the blanks of ChID."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from albert.tasks.definition import Task
from albert.tasks.examples import ChoiceExample, Found, SpanExample, read_json, read_json_lines, suffix_of
from albert.tasks.tables import Columns, Row, cell_of, object_rows, open_table, values_of
from data.errors import InputError

# usual names of the columns of a table of questions
_SPAN_COLUMNS: Columns = {
    "text": ("context", "passage", "text", "content"),
    "pair": ("question", "query"),
    "label": ("answer", "answers", "label"),
}
_BLANK = re.compile(r"#idiom\d+#")
_AROUND = 28  # characters on each side of a blank: CLUE's baseline reads 64 tokens


def read_spans(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield the examples of a file in the format of SQuAD or CMRC 2018, or of a table with a question a row.

    Raises InputError for another format.
    """
    if suffix_of(path) != ".json" or _has_questions(path):
        yield from _spans_of_rows(path, task, is_labelled)
        return
    content = read_json(path)
    if isinstance(content, list):  # CMRC 2018's first layout, a list of passages
        content = {"data": [{"paragraphs": content}]}
    if not isinstance(content.get("data"), list):
        raise InputError(f"{path} is not in SQuAD's format: it has no list under 'data'")
    numbers = count()
    for a, article in enumerate(content["data"], 1):
        for p, paragraph in enumerate(article["paragraphs"], 1):
            passage = paragraph.get("context", paragraph.get("context_text"))
            for q, question in enumerate(paragraph["qas"], 1):
                where = f"{path}, article {a}, paragraph {p}, question {q}"
                yield where, partial(_span, passage, question, next(numbers), is_labelled)


def _has_questions(path: Path) -> bool:
    """Whether a JSON file holds a question a line or in an array, and not passages with their questions."""
    _, first = next(object_rows(path), (0, ""))
    return isinstance(first, dict) and not {"data", "context_text"} & first.keys()


def _spans_of_rows(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield spans of a TSV, CSV or JSONL. No answer: the passage does not answer the question."""
    needed = {role: True for role in _SPAN_COLUMNS if is_labelled or role != "label"}
    rows, names = open_table(path, task, needed, _SPAN_COLUMNS)

    def example(row: Row, number: int) -> SpanExample:
        values = values_of(row)
        if (column := names.get("label")) and column not in values:
            raise ValueError(f"column {column!r} is missing")
        text, question, label = (values.get(names.get(role) or "") for role in _SPAN_COLUMNS)
        if isinstance(label, dict):  # as Hugging Face's copies of SQuAD and CMRC have it
            pairs = zip(label["text"], label["answer_start"], strict=True)
            label = [{"text": answer, "answer_start": start} for answer, start in pairs]
        answers = label if isinstance(label, list) else [label] if label else []
        entry = {"question": question, "answers": answers, "is_impossible": not answers}
        return _span(text, values | entry, number, is_labelled, cell_of(values, task.group))

    for at, row in enumerate(rows):
        yield f"{path}, row {row[0]}", partial(example, row, at)


def _span(
    passage: str | None, entry: dict[str, Any], number: int, is_labelled: bool, group: str | None = None
) -> SpanExample:
    """The example of an entry, whose id may be its number. An answer whose place is wrong, or missing as in
    CMRC's first layout, is looked for in the passage.
    """
    question = entry.get("question", entry.get("query_text"))
    if not passage or not question or not question.strip():
        raise ValueError("no passage or no question")
    answers = entry.get("answers") or []
    if entry.get("is_impossible") is True or not is_labelled:
        answers = []
    elif not answers:
        raise ValueError("no answer")
    texts, starts = [], []
    for answer in answers:
        answer = answer if isinstance(answer, dict) else {"text": answer}
        text, start = answer["text"], answer.get("answer_start") or 0
        if not text:
            raise ValueError("an answer is empty")
        if passage[start : start + len(text)] != text:
            start = passage.find(text)
        texts.append(text)
        starts.append(start)
    if answers and max(starts) < 0:
        raise ValueError(f"its answer {texts[0]!r} is not in the passage")
    own = cell_of(entry, "id") or cell_of(entry, "query_id") or str(number)
    return SpanExample(own, passage, question, tuple(texts), tuple(starts), group)


def read_choices(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield the examples of a file of C3, RACE or ChID, of a folder of such files, or of a JSONL file of C3's
    or RACE's contents. Raises InputError for another format.
    """
    _, first = (0, None) if path.is_dir() else next(read_json_lines(path), (0, None))
    if isinstance(first, dict) and isinstance(first.get("content"), list):  # ChID's
        yield from _blanks(path, is_labelled)
        return
    numbers = count()
    for where, one in _choice_documents(path):
        for number, (passage, entry) in enumerate(_choices(one), 1):
            make = partial(_choice, passage, entry, next(numbers), is_labelled)
            yield f"{where}, question {number}", make


def _choice_documents(path: Path) -> Iterator[tuple[str, object]]:
    if path.is_dir():
        # RACE has a file for each passage, C3 two a split
        for file in sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".json")):
            yield from _choice_documents(file)
    elif suffix_of(path) == ".jsonl":
        yield from ((f"{path}, row {number}", one) for number, one in read_json_lines(path))
    else:
        content = read_json(path)
        for number, one in enumerate(content if isinstance(content, list) else [content], 1):
            yield f"{path}, passage {number}", one


def _choices(one: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the passage and the entry of each question, as in C3; an empty entry for another format."""
    if isinstance(one, list) and len(one) > 1:  # C3: [lines, questions, id]
        yield from (("\n".join(one[0]), entry) for entry in one[1])
    elif isinstance(one, dict) and "questions" in one:  # RACE
        parts = (one.get(name, ()) for name in ("questions", "options", "answers"))
        for question, choices, letter in zip_longest(*parts):
            answer = dict(zip("ABCDEFGH", choices or (), strict=False)).get(letter)
            yield one.get("article"), {"question": question, "choice": choices, "answer": answer}
    else:
        yield "", {}


def _choice(passage: str, entry: dict[str, Any], number: int, is_labelled: bool) -> ChoiceExample:
    if not entry:
        raise ValueError("neither C3's nor RACE's nor ChID's format")
    choices, answer = entry["choice"], entry.get("answer")
    if len(choices) < 2:
        raise ValueError("fewer than two answers to choose from")
    if is_labelled and answer not in choices:
        raise ValueError("the right answer is not among the choices")
    place = choices.index(answer) if is_labelled else 0
    own = cell_of(entry, "id") or str(number)
    return ChoiceExample(passage, entry["question"], tuple(map(str, choices)), place, own)


def _blanks(path: Path, is_labelled: bool) -> Iterator[Found]:
    """Yield the blanks of ChID's lines of texts and candidates, whose answers are in a file beside them."""
    beside = path.with_name(path.name.replace(".json", "_answer.json"))
    places = read_json(beside) if is_labelled else None
    for number, line in read_json_lines(path):
        where = f"{path}, row {number}"
        match line:
            case {"content": [*texts], "candidates": [*candidates]}:
                for text in map(str, texts):
                    for blank in _BLANK.finditer(text):
                        yield where, partial(_blank, text, blank, candidates, places)
            case _:
                yield where, partial(_choice, "", {}, number, is_labelled)


def _blank(
    text: str, blank: re.Match[str], candidates: list[str], places: Mapping[str, int] | None
) -> ChoiceExample:
    """The example of a blank; `places` are those of the right candidates, by blank."""
    if places is not None and blank.group() not in places:
        raise ValueError(f"no answer for {blank.group()}")
    before, after = (_BLANK.sub("…", part) for part in (text[: blank.start()], text[blank.end() :]))
    passage = f"{before[-_AROUND:]}____{after[:_AROUND]}"
    return ChoiceExample(
        passage, "", tuple(candidates), places[blank.group()] if places else 0, blank.group()
    )
