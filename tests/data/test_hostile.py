"""Bad inputs, each alone and between good ones: a reason for each, and no good document lost."""

import gzip
import json
import os
import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.reading import ReadingRules, read_source
from data.recipe import RefreshSettings
from data.records import InputError
from data.refresh import refresh
from data.statistics import open_workspace
from tests.conftest import SAMPLES

A, B, C = "第一篇讲采茶。要趁早上采。", "第二篇讲炒茶。锅要烧热。", "第三篇讲泡茶。水不要太烫。"


def rows(*texts):
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def zip_of(**files):
    import io

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "../"), content)
    return packed.getvalue()


def surrogate(text):
    return ('{"text": "' + text + '"}\n').encode("ascii", "backslashreplace").replace(b"\\u5b64", b"\\ud800")


# name: content, documents kept when it is read alone, reasons of what is dropped
BAD = {
    "invalid.txt": (A.encode() + b"\n\xff\xfe\xc3(\n" + B.encode(), 1, {}),
    "gb18030.txt": ((A + "\n" + B).encode("gb18030"), 1, {}),
    "utf16.jsonl": (rows(A, B).decode().encode("utf-16"), 2, {}),
    "bom.jsonl": (b"\xef\xbb\xbf" + rows(A, B), 2, {}),
    "nul.txt": (A.encode() + b"\0\0\n" + B.encode(), 1, {}),
    "cut-character.txt": ((A + B).encode()[:-2], 1, {}),
    "empty.txt": (b"", 0, {"empty_file": 1}),
    "blank.txt": (" \n\t\n　\n".encode(), 0, {"empty": 1}),
    "one-sentence.bert.txt": ("只有一句话的文档。\n\n" + A.replace("。", "。\n")).encode(),
    "noise.txt": (random.Random(0).randbytes(20_000), 0, {"not_text": 1}),
    "punctuation.jsonl": (rows("，。！？；：“”、……——", "!!! ??? ... ,,,"), 0, {"too_little_chinese": 2}),
    "repeated.jsonl.gz": (gzip.compress(rows(*[A] * 1000)), 1, {"duplicate": 999}),
    "surrogates.jsonl": (rows(A) + surrogate("孤前面。后面还有一句。"), 2, {}),
    "broken.jsonl": (rows(A) + b'{"text": "no end\n' + rows(B), 2, {"bad_json": 1}),
    "no-field.jsonl": (rows(A) + b'{"content": "\xe8\x8c\xb6"}\n' + rows(B), 2, {"no_text_field": 1}),
    "not-text.jsonl": (
        rows(A) + b'{"text": 5}\n{"text": null}\n{"text": ["a"]}\n',
        1,
        {"text_not_string": 3},
    ),
    "not-objects.jsonl": (rows(A) + b'"a"\n5\nnull\n[1]\n', 1, {"not_an_object": 4}),
    "deep.jsonl": (rows(A) + b'{"text": ' + b"[" * 100_000 + b"\n" + rows(B), 2, {"bad_json": 1}),
    "array.jsonl": (json.dumps([{"text": A}, {"text": B}], indent=2).encode(), 2, {}),
    "columns.csv": (
        f"id,text\n1,{A}\n2\n3,a,b,c\n4,{B}\n".encode(),
        2,
        {"wrong_number_of_columns": 2},
    ),
    "quotes.csv": (f'text\n"{A}"\n"never closed\n'.encode(), 1, {"bad_csv": 1}),
    "header.tsv": (b"id\ttext\n", 0, {}),
    "cut.jsonl.gz": (gzip.compress(rows(A, B) * 9)[:-20], None, {"unreadable_file": 1}),
    "not-gzip.jsonl.gz": (rows(A, B), 2, {}),
    "bomb.txt.gz": (gzip.compress(b"\xe5\x95\x8a" * (1 << 23)), 0, None),
    "slip.zip": (zip_of(**{"__out.jsonl": rows(B), "in.jsonl": rows(A)}), 1, {"unsafe_name": 1}),
    "page.html": (f"<p>{A}<script>x</script><!-- 看不见 --><b>{B}</b>&lt;".encode(), 1, {}),
    "long-word.txt": ((A + "\n" + "a" * 200_000 + "\n" + B).encode(), 1, {}),
    "endless-line.txt": ((A * 40_000).encode(), None, None),
    "line-ends.txt": (f"{A}\r\n{B}\r{C}\n".encode(), 1, {}),
    "名字 有空格 (1).txt": (A.encode(), 1, {}),
    "-rf.txt": (A.encode(), 1, {}),
    "notes.docx": (b"PK\x03\x04", 0, {"not_supported": 1}),
}
BAD["one-sentence.bert.txt"] = (BAD["one-sentence.bert.txt"], 2, {})


def settings_for(root, source, vocabulary_file, corpus="c"):
    return RefreshSettings(
        corpus=corpus,
        sources=(str(source),),
        workspace=root / "w",
        tokenizer=str(vocabulary_file),
        workers=1,
    )


def dropped(workspace, where="true"):
    with open_workspace(workspace) as statistics:
        return dict(
            statistics.sql(
                "select dropped_reason, count(*) from documents "
                f"where dropped_reason is not null and {where} group by all"
            ).fetchall()
        )


@pytest.mark.parametrize("name", BAD)
def test_alone_it_gives_its_documents_and_reasons_or_one_error(tmp_path, vocabulary_file, name):
    content, kept, reasons = BAD[name]
    source = tmp_path / "raw"
    source.mkdir()
    (source / name).write_bytes(content)
    if kept == 0:
        with pytest.raises(InputError) as refused:
            refresh(settings_for(tmp_path, source, vocabulary_file))
        assert "\n" not in str(refused.value) and not (tmp_path / "w/catalog.duckdb").exists()
        return
    try:
        result = refresh(settings_for(tmp_path, source, vocabulary_file))
    except InputError:
        assert kept is None
        return
    assert kept is None or result.documents == kept
    assert reasons is None or dropped(tmp_path / "w") == reasons
    assert not (tmp_path / "out.jsonl").exists()
    with open_workspace(tmp_path / "w") as statistics:
        for text in statistics.texts("c"):
            assert not set("\r\0\ufffd\ufeff") & set(text)


def test_between_good_files_nothing_good_is_lost(tmp_path, vocabulary_file):
    source = tmp_path / "raw"
    source.mkdir()
    good = [f"第{i}个好文件说第{i * 7}种茶。它要用第{i * 3}种水来泡，不能着急。" for i in range(len(BAD) + 1)]
    for number, (name, (content, *_)) in enumerate(BAD.items()):
        (source / f"{number:03d}-good.txt").write_text(good[number], encoding="utf-8")
        (source / f"{number:03d}-{name}").write_bytes(content)
    (source / "999-good.txt").write_text(good[-1], encoding="utf-8")
    os.symlink(source, source / "loop")
    settings = settings_for(tmp_path, source, vocabulary_file)
    refresh(RefreshSettings(**{**vars(settings), "duplicates": type(settings.duplicates)(near=None)}))
    with open_workspace(tmp_path / "w") as statistics:
        texts = {text.replace("\n", "") for text in statistics.texts("c")}
    assert set(good) <= texts
    assert {"bad_json", "not_text", "empty_file", "unreadable_file", "not_supported"} <= set(
        dropped(tmp_path / "w")
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    sample=st.sampled_from(["tea.jsonl", "general.txt"]),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=12)), max_size=12),
    cut=st.integers(1, 10**6),
)
def test_mutated_real_files_give_documents_or_reasons(tmp_path, sample, edits, cut):
    content = bytearray((SAMPLES / sample).read_bytes()[:30_000])
    for place, noise in edits:
        at = place % len(content)
        content[at : at + len(noise)] = noise
    path = Path(tmp_path / f"mutated-{sample}")
    path.write_bytes(content[: cut % len(content) + 1])
    read_source(str(path), tmp_path / "listing.parquet", tmp_path / "staged.parquet", ReadingRules())
