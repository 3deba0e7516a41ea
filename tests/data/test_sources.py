import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.records import Dropped, InputError, RawDocument
from data.sources import find_files, read_documents

FIRST, SECOND = "第一篇讲采茶。要趁早上采。", "第二篇讲炒茶。锅要烧热。"
BERT = "第一篇讲采茶。\n要趁早上采。\n\n第二篇讲炒茶。\n锅要烧热。\n"


def texts(path, **options):
    return [item.text for item in read_documents(path, **options) if isinstance(item, RawDocument)]


def reasons(path, **options):
    return Counter(item.reason for item in read_documents(path, **options) if isinstance(item, Dropped))


def content(kind):
    rows = [{"text": FIRST}, {"text": SECOND}]
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    if kind == "json":
        return json.dumps(rows, ensure_ascii=False, indent=2).encode()
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        return f"id{mark}text\n1{mark}{FIRST}\n2{mark}{SECOND}\n".encode()
    return BERT.encode()


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "txt"])
def test_every_format_gives_its_documents(tmp_path, kind, compression):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[compression]
    path = tmp_path / f"corpus.{kind}{compression}"
    path.write_bytes(pack(content(kind)))
    assert [text.replace("\n", "") for text in texts(path)] == [FIRST, SECOND]


def test_parquet_gives_its_documents(tmp_path):
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"content": [FIRST, None, SECOND]}), path)
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"text_not_string": 1}


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "big5"]
)
def test_encodings_are_found_out(tmp_path, encoding):
    text = "這是一份文件，內容只有兩句話。今天天氣很好。" if encoding == "big5" else FIRST + "\n" + SECOND
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    path = tmp_path / "corpus.txt"
    path.write_bytes(mark + text.encode(encoding))
    assert texts(path) == [text]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_known_without_its_mark(tmp_path, encoding):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in (FIRST, SECOND)).encode(encoding)
    )
    assert texts(path) == [FIRST, SECOND]


def test_blank_lines_part_documents_only_where_sentences_have_lines(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("第一段说采茶，有两句。第二句在这里。\n\n第二段说炒茶。\n", encoding="utf-8")
    assert len(texts(path)) == 1
    assert len(texts(path, text_format="bert")) == 2
    path.write_text(BERT, encoding="utf-8")
    assert len(texts(path)) == 2
    assert len(texts(path, text_format="document")) == 1


def test_bad_rows_are_named_and_the_good_ones_kept(tmp_path):
    path = tmp_path / "corpus.jsonl"
    deep = "[" * 100_000
    rows = [
        json.dumps({"text": FIRST}),
        "{broken",
        '{"title": "x"}',
        '{"text": 5}',
        '"a string"',
        deep,
        json.dumps({"text": SECOND}),
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    assert texts(path) == [FIRST, SECOND]
    assert reasons(path) == {"bad_json": 2, "no_text_field": 1, "text_not_string": 1, "not_an_object": 1}
    dropped = next(item for item in read_documents(path) if isinstance(item, Dropped))
    assert dropped.source_uri == f"{path}#line=2"


def test_line_separators_inside_strings_end_no_row(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "一\u2028二\x85三"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert texts(path) == ["一\u2028二\x85三"]


def test_damaged_files_give_a_reason(tmp_path):
    whole = gzip.compress(content("jsonl") * 50)
    for name, bad, reason in [
        ("cut.jsonl.gz", whole[: len(whole) // 2], "unreadable_file"),
        ("noise.txt", bytes(range(256)) * 40, "not_text"),
        ("quotes.csv", b'text\n"never closed\n', "unreadable_file"),
        ("bomb.txt.gz", gzip.compress(b"\0" * (1 << 26)), "unreadable_file"),
        ("bad.parquet", b"PAR1 not really", "unreadable_file"),
    ]:
        path = tmp_path / name
        path.write_bytes(bad)
        assert reason in reasons(path), name


def test_plain_text_with_a_gz_name_is_read(tmp_path):
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content("jsonl"))
    assert texts(path) == [FIRST, SECOND]


def test_broken_bytes_cost_only_themselves(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes((FIRST + "\n").encode() * 5 + b"\xff\xfe\xfd" + (SECOND + "\n").encode() * 5)
    (text,) = texts(path)
    assert text.count(FIRST) == 5 and SECOND in text


def test_a_huge_document_is_cut_into_several(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(FIRST * 200_000, encoding="utf-8")
    parts = texts(path)
    assert len(parts) == 3 and "".join(parts) == FIRST * 200_000
    assert all(part.endswith("。") for part in parts)


def test_nothing_to_read_is_an_error(tmp_path):
    for source, message in [
        (tmp_path / "no", "does not exist"),
        (tmp_path, "holds no file"),
        (tmp_path / "*.txt", "exist"),
    ]:
        with pytest.raises(InputError, match=message):
            find_files(str(source))
    (tmp_path / "a.docx").write_bytes(b"")
    with pytest.raises(InputError, match="not a supported input"):
        find_files(str(tmp_path / "a.docx"))


def test_folders_and_globs_are_searched_in_order(tmp_path):
    for name in ("b.txt", "a.jsonl", "名字 有空格 (1).txt", "deep/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n", encoding="utf-8")
    names = [str(p.relative_to(tmp_path)) for p in find_files(str(tmp_path))]
    assert names == sorted(names) and len(names) == 4
    assert [p.name for p in find_files(str(tmp_path / "**/*.csv"))] == ["c.csv"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    kind=st.sampled_from(["txt", "jsonl", "csv", "tsv", "parquet", "jsonl.gz", "txt.zst"]),
    noise=st.binary(max_size=80),
    at=st.integers(0, 200),
)
def test_no_bytes_whatever_raise(tmp_path, kind, noise, at):
    good = content(kind.split(".")[0])
    path = tmp_path / f"fuzz.{kind}"
    path.write_bytes(good[:at] + noise + good[at:] if at % 3 else noise)
    for item in read_documents(path):
        assert isinstance(item, RawDocument | Dropped)
