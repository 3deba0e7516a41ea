"""Questions about a passage, in the JSON of SQuAD (also DRCD), CMRC 2018, C3 and RACE; the blanks of ChID."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
    read_lines,
    suffix_of,
)
from albert.tasks.tables import Columns, cell_of, json_rows, open_table
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
    articles = content.get("data") if isinstance(content, dict) else _as_squad(content)
    if not isinstance(articles, list):
        raise InputError(f"{path} is not in SQuAD's format: it has no list under 'data'")
    numbers = count()
    for a, article in enumerate(articles, 1):
        for p, paragraph in enumerate(_entries(article, "paragraphs"), 1):
            for q, question in enumerate(_entries(paragraph, "qas"), 1):
                where = f"{path}, article {a}, paragraph {p}, question {q}"
                yield where, _span(paragraph.get("context"), question, next(numbers), is_labelled)


def _has_questions(path: Path) -> bool:
    """Whether a JSON file holds a question a line or in an array, and not passages with their questions."""
    _, first = next(json_rows(path), (0, ""))
    return isinstance(first, dict) and not {"data", "context_text"} & first.keys()


def _spans_of_rows(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield spans of a TSV, CSV or JSONL. No answer: the passage does not answer the question."""
    roles = [role for role in _SPAN_COLUMNS if is_labelled or role != "label"]
    rows, names = open_table(path, task, roles, _SPAN_COLUMNS)
    for at, (number, row) in enumerate(rows):
        where = f"{path}, row {number}"
        if isinstance(row, str):
            yield where, row
            continue
        if (column := names.get("label")) and column not in row:
            yield where, f"column {column!r} is missing"
            continue
        text, question, label = (row.get(names.get(role) or "") for role in _SPAN_COLUMNS)
        if isinstance(label, dict):  # as Hugging Face's copies of SQuAD and CMRC have it
            pairs = zip(_entries(label, "text"), _entries(label, "answer_start"), strict=False)
            label = [{"text": answer, "answer_start": start} for answer, start in pairs]
        answers = label if isinstance(label, list) else [label] if label else []
        entry = {"id": row.get("id"), "question": question, "answers": answers, "is_impossible": not answers}
        yield where, _span(text, entry, at, is_labelled, cell_of(row, task.group))


def _entries(parent: object, name: str) -> list[Any]:
    """The list that an object holds under a name; empty if it holds none."""
    found = parent.get(name) if isinstance(parent, dict) else None
    return found if isinstance(found, list) else []


def _as_squad(content: object) -> list[object] | None:
    """The articles of CMRC 2018's first layout, a list of passages; None for another layout."""
    if not isinstance(content, list):
        return None
    if not all(isinstance(one, dict) and "context_text" in one for one in content):
        return None
    return [{"paragraphs": [{"context": one["context_text"], "qas": one.get("qas")}]} for one in content]


def _span(
    passage: object, entry: object, number: int, is_labelled: bool, group: str | None = None
) -> SpanExample | str:
    """The example of an entry, or the entry's fault; the number is its id if it has none. An answer whose
    place is wrong or missing, as in CMRC's first layout, is looked for in the passage.
    """
    entry = entry if isinstance(entry, dict) else {}
    question = entry.get("question", entry.get("query_text"))
    if not isinstance(passage, str) or not isinstance(question, str) or not question.strip():
        return "no passage or no question"
    answers = _entries(entry, "answers")
    if entry.get("is_impossible") is True or not is_labelled:
        answers = []
    elif not answers:
        return "no answer"
    texts, starts = [], []
    for answer in answers:
        answer = answer if isinstance(answer, dict) else {"text": answer}
        text, start = answer.get("text"), answer.get("answer_start")
        if not isinstance(text, str) or not text:
            return "an answer is empty"
        if not isinstance(start, int) or start < 0 or passage[start : start + len(text)] != text:
            start = passage.find(text)
        texts.append(text)
        starts.append(start)
    if answers and max(starts) < 0:
        return f"its answer {texts[0]!r} is not in the passage"
    own = entry.get("id", entry.get("query_id"))
    own = str(number if own is None else own)
    return SpanExample(own, passage, question, tuple(texts), tuple(starts), group)


def read_choices(path: Path, task: Task, is_labelled: bool) -> Iterator[Found]:
    """Yield the examples of a file of C3, RACE or ChID, of a folder of such files, or of a JSONL file of C3's
    or RACE's contents. Raises InputError for another format.
    """
    if _is_chid(path):
        yield from _blanks(path, is_labelled)
        return
    total = 0
    for where, one in _choice_documents(path):
        for number, (passage, entry) in enumerate(_choices(one), 1):
            example = entry if isinstance(entry, str) else _choice(passage, entry, total, is_labelled)
            yield f"{where}, question {number}", example
            total += 1


def _choice_documents(path: Path) -> Iterator[tuple[str, object]]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".json"))
        if not files:
            raise InputError(
                f"no .txt and no .json file in {path}: RACE has one for each passage, C3 two a split"
            )
        for file in files:
            yield from _choice_documents(file)
    elif suffix_of(path) == ".jsonl":
        yield from ((f"{path}, row {number}", one) for number, one in read_json_lines(path))
    else:
        content = read_json(path)
        for number, one in enumerate(content if isinstance(content, list) else [content], 1):
            yield f"{path}, passage {number}", one


def _choices(one: object) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the passage and the entry of each question, as in C3, or why there is none."""
    if isinstance(one, list) and len(one) >= 2 and isinstance(one[0], list) and isinstance(one[1], list):
        passage = "\n".join(map(str, one[0]))  # C3: [lines, questions, id]
        yield from ((passage, entry if isinstance(entry, dict) else {}) for entry in one[1])
    elif isinstance(one, dict) and isinstance(one.get("questions"), list):
        parts = (_entries(one, name) for name in ("questions", "options", "answers"))  # RACE
        for question, choices, letter in zip_longest(*parts):
            place = "ABCDEFGH".find(letter) if isinstance(letter, str) and len(letter) == 1 else -1
            answer = choices[place] if isinstance(choices, list) and 0 <= place < len(choices) else None
            yield str(one.get("article", "")), {"question": question, "choice": choices, "answer": answer}
    else:
        yield "", "neither C3's nor RACE's format"


def _choice(passage: str, entry: dict[str, Any], number: int, is_labelled: bool) -> ChoiceExample | str:
    question, choices, answer = entry.get("question"), entry.get("choice"), entry.get("answer")
    if not isinstance(question, str) or not isinstance(choices, list) or len(choices) < 2:
        return "no question, or fewer than two answers to choose from"
    if is_labelled and answer not in choices:
        return "the right answer is not among the choices"
    place, own = choices.index(answer) if is_labelled else 0, entry.get("id")
    return ChoiceExample(
        passage, question, tuple(map(str, choices)), place, str(number if own is None else own)
    )


def _is_chid(path: Path) -> bool:
    if path.is_dir():
        return False
    try:
        one = json.loads(next(read_lines(path), ""))
    except (ValueError, RecursionError):
        return False
    return isinstance(one, dict) and isinstance(one.get("content"), list)


def _blanks(path: Path, is_labelled: bool) -> Iterator[Found]:
    """Yield the blanks of ChID's lines of texts and candidates, whose answers are in a file beside them."""
    beside = path.with_name(path.name.replace(".json", "_answer.json"))
    answers = read_json(beside) if is_labelled else None
    places = answers if isinstance(answers, dict) else {}  # of the right candidates, by blank
    for number, one in read_json_lines(path):
        candidates = tuple(map(str, _entries(one, "candidates")))
        for text in _entries(one, "content"):
            for blank in _BLANK.finditer(str(text)):
                place = places.get(blank.group()) if is_labelled else 0
                example: ChoiceExample | str = f"no answer for {blank.group()}"
                if isinstance(place, int) and 0 <= place < len(candidates):
                    parts = text[: blank.start()], text[blank.end() :]
                    before, after = (_BLANK.sub("…", part) for part in parts)
                    passage = f"{before[-_AROUND:]}____{after[:_AROUND]}"
                    example = ChoiceExample(passage, "", candidates, place, blank.group())
                yield f"{path}, row {number}", example
