"""Questions about a passage, in the JSON of SQuAD (also DRCD), CMRC 2018, C3 and RACE; the blanks of ChID."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from albert.tasks.examples import (
    ChoiceExample,
    SpanExample,
    read_json,
    read_json_lines,
    read_lines,
    suffix_of,
)
from albert.tasks.table_files import Role, find_column, is_json_lines, json_rows, table_rows
from data.errors import InputError

# usual names of the columns of a table of questions
SPAN_COLUMNS: dict[Role, tuple[str, ...]] = {
    "text": ("context", "passage", "text", "content"),
    "pair": ("question", "query"),
    "label": ("answer", "answers", "label"),
}
_BLANK = re.compile(r"#idiom\d+#")
_AROUND = 28  # characters on each side of a blank: CLUE's baseline reads 64 tokens


def read_spans(
    path: Path, columns: Mapping[Role, str], is_labelled: bool = True
) -> tuple[list[SpanExample], list[str]]:
    """The examples of a file in the format of SQuAD or CMRC 2018, or of a table with a question a row, and
    the questions that could not be used. Raises InputError for another format.
    """
    if suffix_of(path) != ".json":
        return _spans_of_rows(path, columns, is_labelled)
    content = read_json(path)
    articles = content.get("data") if isinstance(content, dict) else _as_squad(content)
    if not isinstance(articles, list):
        raise InputError(f"{path} is not in SQuAD's format: it has no list under 'data'")
    examples: list[SpanExample] = []
    skipped: list[str] = []
    for a, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        for p, paragraph in enumerate(paragraphs if isinstance(paragraphs, list) else []):
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            for q, question in enumerate(questions if isinstance(questions, list) else []):
                example = _span(paragraph.get("context"), question, is_labelled)
                if isinstance(example, str):
                    skipped.append(f"{path}, article {a + 1}, paragraph {p + 1}, question {q + 1}: {example}")
                else:
                    examples.append(example)
    return examples, skipped


def _spans_of_rows(
    path: Path, columns: Mapping[Role, str], is_labelled: bool
) -> tuple[list[SpanExample], list[str]]:
    """Spans of a TSV, CSV or JSONL. No answer: the passage does not answer the question."""
    usual = [name for names in SPAN_COLUMNS.values() for name in names]
    rows = list(json_rows(path) if is_json_lines(path) else table_rows(path, None, usual))
    first = next((row for _, row in rows if isinstance(row, dict)), None)
    if first is None:
        raise InputError(f"{path} holds no example")
    roles = [role for role in SPAN_COLUMNS if is_labelled or role != "label"]
    names = {
        role: find_column(path, list(first), role, columns.get(role), SPAN_COLUMNS[role]) for role in roles
    }
    examples: list[SpanExample] = []
    skipped: list[str] = []
    for at, (number, row) in enumerate(rows):
        example: SpanExample | str = row if isinstance(row, str) else ""
        if isinstance(row, dict):
            text, pair, label = (row.get(names.get(role) or "") for role in SPAN_COLUMNS)
            answers = label if isinstance(label, list) else [label] if label else []
            entry = {"id": row.get("id", at), "question": pair, "is_impossible": not answers}
            example = _span(text, entry | {"answers": answers}, is_labelled)
        if isinstance(example, str):
            skipped.append(f"{path}, row {number}: {example}")
        else:
            examples.append(example)
    return examples, skipped


def _as_squad(content: object) -> list[object] | None:
    """The articles of CMRC 2018's first layout, a list of passages; None for another layout."""
    if not isinstance(content, list):
        return None
    passages = [one for one in content if isinstance(one, dict) and "context_text" in one]
    if len(passages) < len(content):
        return None
    return [{"paragraphs": [{"context": one["context_text"], "qas": one.get("qas")}]} for one in passages]


def _span(passage: object, entry: object, is_labelled: bool) -> SpanExample | str:
    """The example of an entry, or the entry's fault. An answer whose place is wrong or missing, as in CMRC's
    first layout, is looked for in the passage.
    """
    entry = entry if isinstance(entry, dict) else {}
    question = entry.get("question", entry.get("query_text"))
    if not isinstance(passage, str) or not isinstance(question, str) or not question.strip():
        return "no passage or no question"
    answers = entry.get("answers")
    if entry.get("is_impossible") is True or not is_labelled:
        answers = []
    elif not isinstance(answers, list) or not answers:
        return "no answer"
    texts, starts = [], []
    for answer in answers:
        text = answer.get("text") if isinstance(answer, dict) else answer
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        if not isinstance(text, str) or not text:
            return "an answer is empty"
        if not isinstance(start, int) or start < 0 or passage[start : start + len(text)] != text:
            start = passage.find(text)
        texts.append(text)
        starts.append(start)
    return SpanExample(
        str(entry.get("id", entry.get("query_id", ""))), passage, question, tuple(texts), tuple(starts)
    )


def read_choices(path: Path, is_labelled: bool = True) -> tuple[list[ChoiceExample], list[str]]:
    """The examples of a file of C3, RACE or ChID, of a folder of such files, or of a JSONL file of C3's or
    RACE's contents. Raises InputError for another format.
    """
    examples: list[ChoiceExample] = []
    skipped: list[str] = []
    read = _blanks if _is_chid(path) else _questions
    for where, example in read(path, is_labelled):
        if isinstance(example, str):
            skipped.append(f"{where}: {example}")
        else:
            examples.append(example)
    return examples, skipped


def _questions(path: Path, is_labelled: bool) -> Iterator[tuple[str, ChoiceExample | str]]:
    total = 0
    for where, one in _choice_documents(path):
        for number, entry in enumerate(_choices(one), 1):
            example = entry if isinstance(entry, str) else _choice(*entry, str(total), is_labelled)
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
        for number, one in read_json_lines(path):
            yield f"{path}, row {number}", one
    else:
        content = read_json(path)
        for number, one in enumerate(content if isinstance(content, list) else [content], 1):
            yield f"{path}, passage {number}", one


def _is_chid(path: Path) -> bool:
    if path.is_dir():
        return False
    try:
        one = json.loads(next(read_lines(path), ""))
    except (ValueError, RecursionError):
        return False
    return isinstance(one, dict) and isinstance(one.get("content"), list)


def _blanks(path: Path, is_labelled: bool) -> Iterator[tuple[str, ChoiceExample | str]]:
    """Yield the blanks of ChID's lines of texts and candidates, whose answers are in a file beside them."""
    beside = path.with_name(path.name.replace(".json", "_answer.json"))
    answers = read_json(beside) if is_labelled else None
    places = answers if isinstance(answers, dict) else {}  # of the right candidates, by blank
    for number, one in read_json_lines(path):
        row = one if isinstance(one, dict) else {}
        candidates = [str(idiom) for idiom in row.get("candidates", [])]
        for text in row.get("content", []):
            for blank in _BLANK.finditer(str(text)):
                place = places.get(blank.group()) if is_labelled else 0
                if not isinstance(place, int) or not 0 <= place < len(candidates):
                    yield f"{path}, row {number}", f"no answer for {blank.group()}"
                    continue
                before, after = (
                    _BLANK.sub("…", part) for part in (text[: blank.start()], text[blank.end() :])
                )
                passage = f"{before[-_AROUND:]}____{after[:_AROUND]}"
                example = ChoiceExample(passage, "", tuple(candidates), place, blank.group())
                yield f"{path}, row {number}", example


_Entry = tuple[str, object, object, object, object]  # passage, question, choices, answer, id


def _choices(one: object) -> Iterator[_Entry | str]:
    """Yield the questions of a passage, or the fault of each."""
    if isinstance(one, list) and len(one) >= 2 and isinstance(one[0], list) and isinstance(one[1], list):
        passage = "\n".join(map(str, one[0]))  # C3: [lines, questions, id]
        for entry in one[1]:
            entry = entry if isinstance(entry, dict) else {}
            question, choices = entry.get("question"), entry.get("choice")
            yield passage, question, choices, entry.get("answer"), entry.get("id")
        return
    if not isinstance(one, dict) or not isinstance(one.get("questions"), list):
        yield "neither C3's nor RACE's format"
        return
    options, answers = one.get("options"), one.get("answers")
    for number, question in enumerate(one["questions"]):
        choices = options[number] if isinstance(options, list) and number < len(options) else None
        letter = answers[number] if isinstance(answers, list) and number < len(answers) else None
        place = "ABCDEFGH".find(letter) if isinstance(letter, str) and len(letter) == 1 else -1
        answer = choices[place] if isinstance(choices, list) and 0 <= place < len(choices) else None
        yield str(one.get("article", "")), question, choices, answer, None


def _choice(
    passage: str,
    question: object,
    choices: object,
    answer: object,
    own: object,
    number: str,
    is_labelled: bool,
) -> ChoiceExample | str:
    if not isinstance(question, str) or not isinstance(choices, list) or len(choices) < 2:
        return "no question, or fewer than two answers to choose from"
    if is_labelled and answer not in choices:
        return "the right answer is not among the choices"
    place = choices.index(answer) if is_labelled else 0
    return ChoiceExample(
        passage, question, tuple(map(str, choices)), place, number if own is None else str(own)
    )
