"""Questions about a passage, in the JSON of SQuAD (also DRCD), CMRC 2018, C3 and RACE; the blanks of ChID."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from albert.tasks.definition import Task
from albert.tasks.examples import (
    ChoiceExample,
    Found,
    SpanExample,
    read_json,
    read_json_lines,
    read_parquet,
    suffix_of,
)
from albert.tasks.tables import Columns, Row, cell_of, object_rows, open_table, values_of
from data.errors import InputError

# usual names of the columns of a table of questions
_SPAN_COLUMNS: Columns = {
    "text": ("context", "passage", "text", "content"),
    "pair": ("question", "query"),
    "label": ("answer", "answers", "label"),
}
_PASSAGES = ("context", "article", "passage", "text", "content")
_CHOICES = ("choice", "choices", "options")
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
    """Yield the examples of a file of C3, RACE or ChID, of a folder of such files, or of JSON or Parquet
    with a question a row. Raises InputError for another format.
    """
    files, numbers = [path], count()
    if path.is_dir():  # RACE has a file for each passage, C3 two a split
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".json"))
    for file in files:
        places = cache(partial(read_json, file.with_name(file.name.replace(".json", "_answer.json"))))
        for where, one in _choice_documents(file):
            match one:
                case {"content": [*texts], "candidates": [*candidates]}:  # ChID's
                    answers = one.get("answers") or places() if is_labelled else None
                    yield from ((where, make) for make in _blanks(texts, candidates, answers))
                case _:
                    for number, (passage, entry) in enumerate(_choices(one), 1):
                        make = partial(_choice, passage, entry, next(numbers), is_labelled, task.group)
                        yield f"{where}, question {number}" if entry else where, make


def _choice_documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where in a file, and the content, of each of its lines, rows or passages."""
    suffix = suffix_of(path)
    if suffix == ".parquet":
        yield from ((f"{path}, row {number}", one) for number, one in enumerate(read_parquet(path), 1))
        return
    _, first = next(read_json_lines(path), (0, None))
    if suffix == ".jsonl" or suffix == ".json" and isinstance(first, dict):
        yield from ((f"{path}, row {number}", one) for number, one in read_json_lines(path))
    else:
        content = read_json(path)
        for number, one in enumerate(content if isinstance(content, list) else [content], 1):
            yield f"{path}, passage {number}", one


def _choices(one: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the passage and the entry of each question, as in C3; an empty entry for another format."""
    if isinstance(one, list) and len(one) > 1:  # C3: [lines, questions, id]
        yield from ((one[0], entry) for entry in one[1])
    elif isinstance(one, dict) and "questions" in one:  # RACE
        parts = (one.get(name, ()) for name in ("questions", "options", "answers"))
        for entry in zip_longest(*parts):
            yield one.get("article"), dict(zip(("question", "choice", "answer"), entry, strict=True))
    elif isinstance(one, dict) and (column := next((name for name in _CHOICES if name in one), None)):
        # a question a row, as in Hugging Face's copies of both
        question, passage = one.get("question"), next((one[n] for n in _PASSAGES if one.get(n)), None)
        if not passage:
            passage, question = question, ""
        yield passage, one | {"question": question, "choice": one[column]}
    else:
        yield "", {}


def _choice(
    passage: str | list[str], entry: dict[str, Any], number: int, is_labelled: bool, group: str | None
) -> ChoiceExample:
    """The example of an entry, whose choices may have letters, and whose answer may be a letter."""
    if not entry:
        raise ValueError("neither C3's nor RACE's nor ChID's format, nor a question with its choices")
    lettered, answer = entry["choice"], entry.get("answer")
    if isinstance(lettered, list):
        lettered = {chr(ord("A") + at): choice for at, choice in enumerate(lettered)}
    lettered = {letter: choice for letter, choice in lettered.items() if choice not in (None, "")}
    if len(lettered) < 2:
        raise ValueError("fewer than two answers to choose from")
    right = {choice for letter, choice in lettered.items() if answer in (letter, choice)}
    if is_labelled and len(right) != 1:
        fault = "the letter of another choice" if right else "not among the choices"
        raise ValueError(f"the right answer is {fault}")
    choices = tuple(map(str, lettered.values()))
    passage = "\n".join(passage) if isinstance(passage, list) else passage
    place = choices.index(str(right.pop())) if is_labelled else 0
    own = cell_of(entry, "id") or str(number)
    return ChoiceExample(passage, entry["question"], choices, place, own, cell_of(entry, group))


def _blanks(
    texts: list[str], candidates: list[str], answers: Mapping[str, Any] | None
) -> Iterator[Callable[[], ChoiceExample]]:
    """Yield what makes the example of each blank of ChID's texts. `answers` are by blank, as in the file
    beside theirs, or in the blanks' order, as Hugging Face's copy has them in each row.
    """
    found = [(text, blank) for text in texts for blank in _BLANK.finditer(text)]
    if answers and "candidate_id" in answers:
        places = zip((blank.group() for _, blank in found), answers["candidate_id"], strict=False)
        answers = dict(places)
    yield from (partial(_blank, text, blank, candidates, answers) for text, blank in found)


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
