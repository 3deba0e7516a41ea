"""Bad inputs, each alone and between good ones: a reason for each, and no good document lost."""

import contextlib
import gzip
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.cleaning import CleaningRules, DuplicateRules, clean_text, make_guard, split_sentences
from data.errors import InputError
from data.refresh import RefreshSettings
from data.refresh.read import read_sources
from data.sources.markup import mdx_text
from tests.conftest import SAMPLES
from tests.data.helpers import parquet_of, tar_of, zip_of

A, B = "第一篇讲采茶。要趁早上采。", "第二篇讲炒茶。锅要烧热。"


def rows(*texts):
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


# name: content, documents kept when it is read alone, reasons of what is dropped
BAD = {
    "invalid.txt": (A.encode() + b"\n\xff\xfe\xc3(\n" + B.encode(), 1, {}),
    "nul.txt": (A.encode() + b"\0\0\n" + B.encode(), 1, {}),
    "cut-character.txt": ((A + B).encode()[:-2], 1, {}),
    "empty.txt": (b"", 0, {"empty_file": 1}),
    "blank.txt": (" \n\t\n　\n".encode(), 0, {"empty": 1}),
    "one-sentence.bert.txt": (("只有一句话的文档。\n\n" + A.replace("。", "。\n")).encode(), 2, {}),
    "noise.txt": (random.Random(0).randbytes(20_000), 0, {"not_text": 1}),
    "punctuation.jsonl": (rows("，。！？；：“”、……——", "!!! ??? ... ,,,"), 0, {"empty": 2}),
    "repeated.jsonl.gz": (gzip.compress(rows(*[A] * 1000)), 1, {"duplicate": 999}),
    "surrogates.jsonl": (rows(A, "孤前面。后面还有一句。").replace("孤".encode(), b"\\ud800"), 2, {}),
    "broken.jsonl": (rows(A) + b'{"text": "no end\n' + rows(B), 2, {"bad_json": 1}),
    "no-field.jsonl": (rows(A) + b'{"content": "\xe8\x8c\xb6"}\n' + rows(B), 2, {"no_text_field": 1}),
    "long-numbers.jsonl": (rows(A, B).replace(b'{"text"', b'{"n": ' + b"9" * 6000 + b', "text"'), 2, {}),
    "not-text.jsonl": (
        rows(A) + b'{"text": 5}\n{"text": null}\n{"text": [1]}\n',
        1,
        {"text_not_string": 3},
    ),
    "not-objects.jsonl": (rows(A) + b'"a"\n5\nnull\n[1]\n', 1, {"not_an_object": 4}),
    "deep.jsonl": (rows(A) + b'{"text": ' + b"[" * 100_000 + b"\n" + rows(B), 2, {"bad_json": 1}),
    "columns.csv": (f"id,text\n1,{A}\n2\n3,a,b,c\n4,{B}\n".encode(), 2, {"wrong_number_of_columns": 2}),
    "quotes.csv": (f'text\n"{A}"\n"never closed\n'.encode(), 1, {"bad_csv": 1}),
    "trailing.jsonl.gz": (gzip.compress(rows(A, B)) + b"by a download manager", 2, {"unreadable_file": 1}),
    "not-gzip.jsonl.gz": (rows(A, B), 2, {}),
    "bomb.txt.gz": (gzip.compress(b"\xe5\x95\x8a" * (1 << 23)), 0, None),
    "page.html": (f"<p>{A}<script>x</script><!-- 看不见 --><b>{B}</b>&lt;".encode(), 1, {}),
    "long-word.txt": ((A + "\n" + "a" * 200_000 + "\n" + B).encode(), 1, {}),
    "endless-line.txt": ((A * 40_000).encode(), None, None),
    "-rf 名字 有空格 (1).txt": (A.encode(), 1, {}),
    "bad.parquet": (b"PAR1 not really", 0, {"unreadable_file": 1}),
    "no-field.parquet": (parquet_of(body=[A]), 0, {"no_text_field": 1}),
    "notes.docx": (b"PK\x03\x04", 0, None),  # alone it is none of the files that are read
}


def dropped(corpus):
    reasons = "from documents where dropped_reason is not null group by all"
    return dict(corpus.ask(f"select dropped_reason, count(*) {reasons}"))


@pytest.mark.parametrize("name", BAD)
def test_alone_it_gives_its_documents_and_reasons_or_one_error(tea, name):
    content, kept, reasons = BAD[name]
    (tea.raw / name).write_bytes(content)
    try:
        _, read, division = tea.divided()
        listed = pq.read_table(division.listed_path)["reason"].to_pylist()
    except InputError as refused:
        assert not kept and "\n" not in str(refused)
        assert all(f"{count} {reason}" in str(refused) for reason, count in (reasons or {}).items())
        return
    assert kept is None or listed.count(None) == kept
    assert reasons is None or Counter(filter(None, listed)) == reasons
    for text in pq.read_table(read[0].staged_path)["text"].to_pylist():
        assert not set("\r\0\ufffd\ufeff") & set(text)


def test_between_good_files_nothing_good_is_lost(tea):
    good = [f"第{i}个好文件说第{i * 7}种茶。它要用第{i * 3}种水来泡，不能着急。" for i in range(len(BAD) + 1)]
    for number, (name, (content, *_)) in enumerate(BAD.items()):
        (tea.raw / f"{number:03d}-good.txt").write_text(good[number], encoding="utf-8")
        (tea.raw / f"{number:03d}-{name}").write_bytes(content)
    (tea.raw / "999-good.txt").write_text(good[-1], encoding="utf-8")
    os.symlink(tea.raw, tea.raw / "loop")
    tea.refresh(duplicates=DuplicateRules(near=None))
    assert set(good) <= {text.replace("\n", "") for text in tea.texts()}
    reasons = {"bad_json", "not_text", "empty_file", "unreadable_file", "not_supported"}
    assert reasons <= dropped(tea).keys()
    assert tea.ask("select count from funnel where reason = 'undecodable'") == [(4,)]


def real_files() -> dict[str, bytes]:
    """A file of each kind, cut to 30,000 bytes where that is more."""
    text = (SAMPLES / "general.txt").read_text(encoding="utf-8")[:3000]
    block = f"# 茶\n\n```c\nint x;\n```\n\n$$x$$ {text}\n\n|a|b|\n|-|-|\n|茶|水|\n"
    page = (
        f"<html><body><p>{text}</p><pre><code>x</code></pre><table><tr><td>茶</td></tr></table></body></html>"
    )
    files = {name: (SAMPLES / name).read_bytes()[:30_000] for name in ("tea.jsonl", "general.txt")}
    files |= {
        "gb18030.txt": text.encode("gb18030"),
        "page.md": block.encode(),
        "page.mdx": f'import A from "b"\n{block}<A x="{{1}}" />\n'.encode(),
        "page.rst": f"茶\n==\n\n.. note:: 水\n\n   {text}::\n\n      int x;\n".encode(),
        "page.adoc": f"= 茶\n:toc:\n\n----\nint x;\n----\n\n|===\n|{text}\n|===\n".encode(),
        "page.html": page.encode(),
        "rows.csv": f'id,text\n1,"{text}"\n2,茶\n'.encode(),
    }
    return files | {
        "rows.json": json.dumps([{"text": text}], indent=2).encode(),
        "rows.tsv": f"text\n{text}\n".replace("\n\n", "\n").encode(),
        "rows.jsonl.gz": gzip.compress(rows(text, text)),
        "table.parquet": parquet_of(text=[text]),
        "all.zip": zip_of(files),
        "all.tar": tar_of(files),
        "all.tar.zst": pa.compress(tar_of(files), codec="zstd", asbytes=True),
    }


REAL_FILES = real_files()


# what readers look for, and what breaks them
SIGNS = r"""
, " ' { [ ]} : \u \ud800 NaN 1e999 < <!-- <pre> </p> &#x110000; &amp; <script> ``` ~~~ $$ {/* \begin{a} :: ..
---- |=== ========= > 1. * | 。 ” ， ǆ 𠀀 İ ㌀ 1111111111111 http://a.b a@b.cn
"""
BLANK = ("\0", "\r", "\n\n", "\t", "    ", "\ufeff", "\u0301", "\u200d", "\u2028", "9" * 5000)
MARKS = [mark.encode() for mark in (*SIGNS.split(), *BLANK)]
MARKS += [b"\xff", b"\xff\xfe", b"\xfe\xff", b"\xe8\x8c", b"\x81", b"PK\x03\x04", b"\x1f\x8b", b"\xff" * 4]


def mutated_files(name):
    """Files of a kind with pieces put in, taken out or put in place of others; half of them are cut off."""
    noise = st.binary(max_size=12) | st.builds(bytes.__mul__, st.sampled_from(MARKS), st.integers(1, 20))
    edits = st.lists(st.tuples(st.integers(0, 10**6), noise, st.integers(0, 40) | st.none()), max_size=12)
    return st.builds(mutated, st.just(name), edits, st.none() | st.integers(1, 10**6))


def mutated(name, edits, cut):
    content = REAL_FILES[name]
    for place, noise, taken in edits:
        at = place % (len(content) + 1)
        content = content[:at] + noise + content[at + (len(noise) if taken is None else taken) :]
    return content if cut is None else content[: cut % (len(content) + 1)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_mutated_real_files_give_documents_or_reasons(tmp_path, data):
    """Read as a source, and as a file of the guard."""
    name = data.draw(st.sampled_from(sorted(REAL_FILES)))
    path, listing_path, kept_path = (tmp_path / one for one in (name, "listing.parquet", "kept.parquet"))
    path.write_bytes(data.draw(mutated_files(name)))
    read_sources([str(path)], listing_path, kept_path, RefreshSettings(corpus="c"))
    listing, texts = pq.read_table(listing_path).to_pylist(), pq.read_table(kept_path)["text"].to_pylist()
    counts = [row["sentences"] for row in listing if row["stage"] is None]
    assert listing and counts == [text.count("\n") + 1 for text in texts]
    for text in texts:
        assert all(text.split("\n")) and not set("\r\0\ufffd\ufeff") & set(text)
    with contextlib.suppress(InputError):
        make_guard((str(path),), 13, CleaningRules())


def test_what_is_no_file_is_named_and_the_rest_read(tea):
    (tea.raw / "a.txt").write_text(A, encoding="utf-8")
    links = {"loop": ".", "b.txt": "c.txt", "c.txt": "b.txt", "gone.jsonl": "gone", "zero.txt": "/dev/zero"}
    reasons = {"not_a_file": 6}
    if Path("/proc/self/mem").exists():  # a file that nobody can read from its beginning, not even root
        links["unreadable.txt"] = "/proc/self/mem"
        reasons["unreadable_file"] = 1
    for name, target in links.items():
        os.symlink(target, tea.raw / name)
    os.mkfifo(tea.raw / "pipe.txt")
    assert tea.refresh().documents == 1
    assert dropped(tea) == reasons
    assert not tea.refresh().is_new
    for name in ("pipe.txt", "b.txt"):
        with pytest.raises(InputError, match=f"{name} holds no file that can be read"):
            tea.plan(source=(str(tea.raw / name),))


def test_a_source_that_cannot_be_read_says_why_and_makes_no_catalog(tea, write):
    cut, other = gzip.compress(rows(A), mtime=0)[:10], rows(A).replace(b"text", "病历".encode())
    for name, content, why in (
        ("cut.jsonl.gz", cut, "1 unreadable_file; first: .*#.*ended before the end.* refresh again once"),
        ("fields.jsonl", other, "1 no_text_field; first: .*#line=1 with 病历.*: .*--reading.text-field NAME"),
        ("half.jsonl", b'{"\\ud800\\n": "\xe8\x8c\xb6"}', r"1 no_text_field; first: .* with \?\?\): "),
        (
            "long.txt",
            b"tea, " * 30_000,
            "1 .*: no version was made; .*if each line is a document, set --reading",
        ),
    ):
        with pytest.raises(InputError, match=f"no document of .* can be used .*{why}"):
            tea.refresh(source=(str(write(name, content)),))
        assert not tea.place.catalog.exists()


def takes_time_in_proportion(work, few):
    """Whether eight times as much takes less than 24 times as long; quadratic work takes 64 times."""

    def seconds(count):
        begin = time.process_time()
        work(count)
        return time.process_time() - begin

    return min(seconds(8 * few) for _ in range(3)) < 24 * max(seconds(few), 0.01)


def test_a_document_of_very_many_sentences_takes_time_in_proportion(tmp_path):
    characters = random.Random(14).choices("采茶炒泡水锅火山云雾春夏秋冬早晚", k=1 << 20)
    path, listing = tmp_path / "a.txt", tmp_path / "listing.parquet"

    def read(count):
        lines = ["".join(characters[4 * n : 4 * n + 4]) + "。" for n in range(count)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        read_sources([str(path)], listing, tmp_path / "staged.parquet", RefreshSettings(corpus="c"))
        assert pq.read_table(listing, columns=["sentences"]).to_pydict() == {"sentences": [count]}

    assert takes_time_in_proportion(read, 10_000)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda n: "<!--" * n,
        lambda n: "<script>" * n,
        lambda n: "```a\n" * n,
        lambda n: "&" + "amp;" * n,
        lambda n: "<b" * n + "> " * n,
        lambda n: "".join(f"\\begin{{a{i}}}" for i in range(n)),
        lambda n: "# " + " " * n + "茶",
        lambda n: "{/*" * n,
        lambda n: "。”" * n + "，好",
    ],
    ids=["comments", "scripts", "fences", "escapes", "tags", "environments", "heading", "mdx", "marks"],
)
def test_markup_and_marks_that_never_end_take_time_in_proportion(hostile):
    def read(count):
        clean_text(mdx_text(hostile(count)))
        split_sentences(clean_text(hostile(count)))

    assert takes_time_in_proportion(read, 2_000)


@pytest.mark.parametrize("simplify, reason", [(False, "near_duplicate"), (True, "duplicate")])
def test_traditional_twins_are_duplicates_whether_they_are_simplified_or_not(tea, simplify, reason):
    twins = ["图书馆开设了新的阅览室。读者可以借阅。", "圖書館開設了新的閱覽室。讀者可以借閱。"]
    tea.put("twins", *twins, "头发与发展。皇后与后来。乾隆与干燥。")
    tea.refresh(cleaning=CleaningRules(simplify=simplify))
    assert len(tea.texts()) == 2 and any("乾隆与干燥" in text for text in tea.texts())
    assert dropped(tea) == {reason: 1}
