"""Layouts of plain text: found by their lines, and undone where lines were wrapped."""

import json
import textwrap
from dataclasses import replace

import pytest

from data.sources import RawDocument, read_documents
from tests.conftest import sample_texts


def wrapped(text, columns):
    """A text of Chinese wrapped as an editor does: no line begins with a mark."""
    lines = []
    while text:
        size = columns // 2
        while size < len(text) and not text[size].isalnum() and size > columns // 2 - 2:
            size -= 1
        lines.append(text[:size])
        text = text[size:]
    return "\n".join(lines)


@pytest.fixture
def documents(write):
    def documents(content, name="one.txt", **options):
        items = read_documents(write(name, content), **options)
        return [item for item in items if isinstance(item, RawDocument)]

    return documents


PARAGRAPHS = [text.replace("\n", "").replace(" ", "") for text in sample_texts()[:12]]
PARAGRAPHS += [*(text[:100] for text in PARAGRAPHS), "“采茶吧！”他说。“走！”" * 20]


@pytest.mark.parametrize("columns", [36, 76, 156])
@pytest.mark.parametrize("spaces", ["", "\u3000\u3000"], ids=["blank lines", "indented"])
def test_wrapped_text_gives_its_paragraphs_back(documents, columns, spaces):
    paragraphs = [spaces + wrapped(spaces + text, columns).lstrip() for text in PARAGRAPHS]
    (read,) = documents(("\n" if spaces else "\n\n").join(paragraphs))
    assert read.text_format == "wrapped"
    assert [line.strip() for line in read.text.split("\n") if line.strip()] == PARAGRAPHS
    (page,) = documents("\n\n".join(wrapped(text, columns) for text in PARAGRAPHS), "page.md")
    assert page.text.split("\n") == PARAGRAPHS and page.text_format == "wrapped"


def test_wrapped_rows_pages_and_quoted_mail_are_joined_too_and_english_keeps_its_spaces(documents):
    page = "\n\n".join(wrapped(text, 60) for text in PARAGRAPHS)
    answer = "\n".join(f"> {text[:9]}" for text in PARAGRAPHS)
    rows = [json.dumps({"text": text}, ensure_ascii=False) for text in (page, PARAGRAPHS[0], answer)]
    joined, short, other = documents("\n".join(rows), "rows.jsonl")
    assert short == replace(short, text=PARAGRAPHS[0], text_format=None) and other.text == answer
    (html,) = documents(f"<html><body><pre>{page}</pre></body></html>", "old.html", text_format="wrapped")
    mail = "\n".join(f"> {line}".rstrip() for line in page.split("\n"))
    (quoted,) = documents(mail)
    for read, end in ((joined, "\n\n"), (html, None), (quoted, "\n\n")):
        assert read.text.split(end) == PARAGRAPHS and read.text_format == "wrapped"
    (kept,) = documents(page, "page.md", text_format="document")
    assert kept.text == page.replace("\n\n", "\n") and kept.text_format is None
    assert [kept.text for kept in documents(mail, text_format="document")] == [mail]
    text = "A corpus of English letters, as they were sent by mail in plain text, is wrapped at words. " * 8
    for beside in ("", "\n\n" + text.strip()):  # a paragraph that is one long line
        assert [read.text for read in documents(textwrap.fill(text, 72) + beside)] == [text.strip() + beside]


def test_each_line_may_be_a_document(documents):
    long = "第一句在这里。" * 200_000
    read = documents("\r\n\n  \n".join([*PARAGRAPHS, long]), text_format="lines")
    assert [item.text for item in read[: len(PARAGRAPHS)]] == PARAGRAPHS
    assert "".join(item.text for item in read[len(PARAGRAPHS) :]) == long
    places = [item.source_uri.rsplit("one.txt", 1)[1] for item in read]
    assert places[1] == "#line=4" and places[-1] == f"#line={3 * len(PARAGRAPHS) + 1}#part=2"
    assert {item.text_format for item in read} == {"lines"}


@pytest.mark.parametrize(
    "content, text_format",
    [
        ("\n".join(PARAGRAPHS), "document"),
        ("\n\n".join(PARAGRAPHS), "document"),
        ("\n\n".join(f"第{n}节\n{text}" for n, text in enumerate(PARAGRAPHS)), "document"),
        ("两个黄鹂鸣翠柳，一行白鹭上青天；\n窗含西岭千秋雪，门泊东吴万里船。\n" * 8, "document"),
        ("\n".join("茶园里都是人大家都在采茶采完了就回家去"[: 9 + n % 9] for n in range(40)), "document"),
        ("茶园里都是人大家都在采茶采完了就回家去\n" * 4, "document"),
        ("\n\n".join(["第一天采茶。"] * 9), "document"),
        ("\n\n".join(["春天来了！茶园里都是人。\n大家都在采茶！采完就回家。"] * 9), "document"),
        ("\n\u3000\n".join(["春天\n他说：\n“快来！”，她说。\n“大家都在采茶！”\n采完就回家；"] * 9), "bert"),
        ("\n\n".join("春天来了。\n茶园里都是人。\n大家都在采茶。" for _ in range(9)), "bert"),
    ],
    ids=["paragraphs", "blank lines", "headings", "verse", "song", "short", "single", "two", "talk", "bert"],
)  # fmt: skip
def test_a_layout_is_found_and_an_ordinary_text_stays_whole(documents, content, text_format):
    read = documents(content)
    assert {item.text_format for item in read} == {text_format}
    assert len(read) == (9 if text_format == "bert" else 1)
    assert "\n\n".join(item.text for item in read) == content.rstrip("\n").replace("\u3000", "")
