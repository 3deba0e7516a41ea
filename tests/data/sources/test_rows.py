import csv
import json
from io import StringIO

import pytest

from data.sources import Dropped, read_documents
from tests.data.helpers import parquet_of
from tests.data.sources.test_documents import FIRST, SECOND, reasons, texts


def test_pretty_printed_values_are_read_one_after_the_other(write):
    rows = [{"text": f"{FIRST}{n}" * 50, "other": {"deep": [1, {"a": "]"}]}} for n in range(400)]
    apart = "\n".join(json.dumps(row, ensure_ascii=False, indent=2) for row in rows)
    for text in (json.dumps(rows, ensure_ascii=False, indent=1), apart):
        assert texts(write("corpus.json", text)) == [row["text"] for row in rows]
        path = write("corpus.json", text[: len(text) // 2])
        assert len(texts(path)) in range(190, 210) and reasons(path) == {"bad_json": 1}


@pytest.mark.parametrize(
    "layout",
    [
        lambda rows: "[" + ",\n".join(map(dumps, rows)) + "]",
        lambda rows: "[\n" + ",\n".join(map(dumps, rows)) + "\n]\n",
        lambda rows: "\n  \n" + json.dumps(rows, ensure_ascii=False, indent=1),
        lambda rows: "\n" + ",\n\n".join(map(dumps, rows)),
        lambda rows: "\n".join('{ "text": "' + row["text"] + '",\n"n": 1}' for row in rows),
        lambda rows: "[ " + ", ".join(map(dumps, rows)) + " ]",
        lambda rows: "\n\ufeff".join(map(dumps, rows)),
        lambda rows: "\n\ufeff".join(json.dumps(row, indent=1) for row in rows),
        lambda rows: "\n".join(json.dumps(part, indent=1) for part in (rows[:9], rows[9:])),
        lambda rows: "".join(map(dumps, rows)),  # as Amazon's Firehose writes them
    ],
)
def test_json_is_read_in_whatever_layout(write, layout, monkeypatch):
    rows = [{"text": f"{FIRST}{n}"} for n in range(60)]
    for name in ("corpus.json", "corpus.jsonl"):
        path = write(name, layout(rows))
        assert texts(path) == [row["text"] for row in rows] and not reasons(path)
        # again as if one line, or all, were too much to be held at once
        for size, number in (("decoding.LONGEST_LINE", 200), ("decoding.BLOCK", 64), ("rows._WINDOW", 50)):
            monkeypatch.setattr(f"data.sources.{size}", number)


def test_values_of_a_line_do_not_each_count_all_its_characters_and_endless_nesting_is_bad(write):
    path = write("corpus.json", dumps([{"text": FIRST}, *[{"content": SECOND}] * 9]))
    assert reasons(path) == {"no_text_field": 9}
    dropped = [item.characters for item in read_documents(path) if isinstance(item, Dropped)]
    assert sum(dropped) < path.stat().st_size
    for text in ("{\n" * 20_000, '[{"a":[\n' * 10_000, "[" * 100_000):
        assert {item.reason for item in read_documents(write("corpus.json", text))} == {"bad_json"}


def dumps(row):
    return json.dumps(row, ensure_ascii=False)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_texts_of_several_fields_are_one_document(write, kind):
    rows = [("问茶", "", FIRST), ("问水", "要热的", SECOND), (None, "", SECOND), (None,) * 3]
    columns = dict(zip(("title", "desc", "answer"), map(list, zip(*rows, strict=True)), strict=True))
    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    table = StringIO()
    writer = csv.DictWriter(table, list(columns))
    writer.writeheader()
    writer.writerows(objects)
    content = {"jsonl": "\n".join(map(dumps, objects)), "csv": table.getvalue()}
    path = write(f"questions.{kind}", content.get(kind) or parquet_of(**columns))
    expected = [f"问茶\n{FIRST}", f"问水\n要热的\n{SECOND}", SECOND]
    empty = [""] if kind == "csv" else []  # which knows no null
    assert texts(path, text_field="title, desc,answer") == expected + empty
    assert reasons(path, text_field="answer,title") == ({} if empty else {"text_not_string": 1})
    assert texts(path, text_field="answer,title")[1] == f"{SECOND}\n问水"
    wrong = list(read_documents(path, text_field="title,body"))
    assert {(one.reason, one.fields) for one in wrong} == {("no_text_field", "title, desc, answer")}
    wrapped = "\n".join((FIRST * 20)[at : at + 20] for at in range(0, len(FIRST) * 20, 20))
    path = write("wrapped.jsonl", dumps({"title": FIRST * 2, "answer": wrapped}))
    assert texts(path, text_field="title,answer") == [f"{FIRST * 2}\n{FIRST * 20}"]
    numbers = write("numbers.jsonl", dumps({"title": 1, "answer": FIRST}))
    assert reasons(numbers, text_field="title,answer") == {"text_not_string": 1}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_list_of_texts_or_of_objects_with_texts_is_one_document(write, kind):
    columns = {
        "title": ["静夜思", None],
        "paragraphs": [[FIRST, SECOND], [SECOND]],
        "段落": [[{"行号": 1, "内容": SECOND}, {"行号": 2, "内容": FIRST}], []],
    }
    objects = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    content = parquet_of(**columns) if kind == "parquet" else "\n".join(map(dumps, objects))
    path = write(f"poems.{kind}", content)
    assert texts(path, text_field="title,paragraphs") == [f"静夜思\n{FIRST}\n{SECOND}", SECOND]
    assert texts(path, text_field="段落") == [f"{SECOND}\n{FIRST}"]
    assert reasons(path, text_field="段落") == {"text_not_string": 1}
    for value in ([FIRST, 1], [FIRST, None], [[FIRST]], [{"title": FIRST}], {"text": FIRST}):
        bad = write("bad.jsonl", dumps({"title": FIRST, "text": value}))
        assert reasons(bad, text_field="title,text") == {"text_not_string": 1}


def test_a_bad_value_costs_only_itself(write):
    rows = [dumps({"text": f"{FIRST}{n}"}) for n in range(60)]
    rows[9] = rows[59] = dumps({"text": FIRST * 9000}).replace('"text"', "text")  # more than is held at once
    rows[20] = rows[20][:-1]
    rows[40] = rows[40].replace("第", "\t")
    good = [f"{FIRST}{n}" for n in range(60) if n not in (9, 20, 40, 59)]
    for text in ("[" + ",\n".join(rows) + "]", "[" + ",".join(rows) + "\n]"):
        path = write("corpus.json", text)
        assert texts(path) == good and reasons(path) == {"bad_json": 4}
    dropped = [item for item in read_documents(path) if isinstance(item, Dropped)]
    assert [item.source_uri for item in dropped] == [f"{path}#item={n}" for n in (10, 21, 41, 60)]
    assert dropped[0].characters == len(rows[9]) + 1  # a comma
    # no objects, nor an array of them, and objects without text
    for first in ("[1] tea", "12", "[1, 2]", '{"title": 1}', '{"text": 1}'):
        path = write("corpus.jsonl", f"\n{first}\n\n{rows[0]}\n")
        bad, item = read_documents(path)
        assert (bad.source_uri, bad.characters) == (f"{path}#line=2", len(first))
        assert item.source_uri == f"{path}#line=4"


@pytest.mark.parametrize("bad", ['9,"没有结束', '9,"他说"好"。"', '9,"两行\n"没有"结束"'])
def test_a_bad_quote_costs_only_its_row(write, bad):
    rows = [f'{n},"{FIRST}第{n}行，""引用""。\n第二行。"' for n in range(60)]
    rows[9] = bad
    path = write("corpus.csv", "id,text\n" + "\n".join(rows) + "\n")
    assert texts(path) == [f'{FIRST}第{n}行，"引用"。\n第二行。' for n in range(60) if n != 9]
    dropped = [item for item in read_documents(path) if isinstance(item, Dropped)]
    assert dropped[0].source_uri == f"{path}#row=11" and dropped[0].reason == "bad_csv"
    assert dropped[0].characters == len(bad.split("\n")[0])


@pytest.mark.parametrize(
    ("mark", "named"), [(";", ""), ("\t", ""), (", ", ""), ("|", "sep=|\n"), ("\t", "SEP=\t\n")]
)
def test_a_csv_may_have_semicolons_tabs_spaces_or_a_named_mark_between_its_columns(write, mark, named):
    content = f'{named}id{mark}text \n1{mark}"{FIRST}{mark}{SECOND}"\n2{mark}{SECOND}\n'
    first, second = read_documents(write("corpus.csv", content.encode("utf-8-sig")))
    assert (first.text, second.text) == (f"{FIRST}{mark}{SECOND}", SECOND)
    assert first.source_uri.endswith("#row=3" if named else "#row=2")


@pytest.mark.parametrize(
    "kind, places",
    [("jsonl", "line=2 line=4"), ("txt", "line=3 line=5"), ("tsv", "row=3 row=5"), ("csv", "row=3 row=5")],
)
def test_a_row_that_is_too_long_is_dropped_and_the_rest_is_read(write, monkeypatch, kind, places):
    monkeypatch.setattr("data.sources.rows.MAX_ROW_CHARACTERS", 5_000_000)
    rows = [FIRST * 20_000, "茶" * 6_000_000, SECOND, "茶" * 6_000_000]
    lines = [dumps({"text": row}) for row in rows] if kind == "jsonl" else ["text", *rows]
    path = write(f"rows.{kind}", "\n".join(lines))
    assert texts(path, text_format="lines") == ["text"] * (kind == "txt") + rows[::2]
    read = read_documents(path, text_format="lines")
    dropped = [item for item in read if isinstance(item, Dropped)]
    assert [item.source_uri for item in dropped] == [f"{path}#{place}" for place in places.split()]
    assert all(item.reason == "row_too_long" and item.characters >= len(rows[1]) for item in dropped)


def test_a_page_that_is_too_long_is_dropped(write, monkeypatch):
    path = write("page.md", "茶" * 20_000)
    assert not reasons(path)
    monkeypatch.setattr("data.sources.documents.MAX_PAGE_CHARACTERS", 10_000)
    assert list(read_documents(path)) == [Dropped(str(path), "page_too_long", 20_000)]
