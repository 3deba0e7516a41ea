import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import random
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.cleaning import CleaningRules, count_hits, make_guard
from data.errors import InputError, disk_trouble
from data.sources import Dropped, RawDocument, find_files, read_documents
from data.sources.markup import markdown_text
from data.storage import base_name

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


def zstd(content):
    return pa.compress(content, codec="zstd", asbytes=True)


PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "txt"])
def test_every_format_gives_its_documents(write, kind, compression):
    path = write(f"corpus.{kind}{compression}", PACKED[compression](content(kind)))
    assert [text.replace("\n", "") for text in texts(path)] == [FIRST, SECOND]


def members(kind):
    """Files of an archive: good ones, one of another kind, a folder, and names that lead out of it."""
    files = {
        "a.jsonl": content("jsonl"),
        "deep/b.txt.gz": gzip.compress(content("txt")),
        "picture.png": b"\x89PNG",
        "../out.txt": b"\xe5\x87\xba",
    }
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        mode = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz", "tgz": "w:gz"}
        with tarfile.open(fileobj=packed, mode=mode.get(kind, "w")) as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))
    content_of = packed.getvalue()
    return zstd(content_of) if kind == "tar.zst" else content_of


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "tar.zst"])
def test_archives_give_the_documents_of_their_members(tmp_path, write, kind):
    path = write(f"corpus.{kind}", members(kind))
    assert [text.replace("\n", "") for text in texts(path)] == [FIRST, SECOND] * 2
    assert reasons(path) == {"not_supported": 1, "unsafe_name": 1}
    uris = [item.source_uri for item in read_documents(path)]
    assert f"{path}!a.jsonl#line=1" in uris and f"{path}!deep/b.txt.gz#line=1" in uris
    assert not (tmp_path.parent / "out.txt").exists()


def test_documents_before_the_damage_of_an_archive_are_read(tmp_path, write):
    whole = members("tar")
    path = write("cut.tar", whole[:1400])
    assert texts(path)[:2] == [FIRST, SECOND] and reasons(path)["unreadable_file"] == 1
    path = tmp_path / "cut.zip"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("a.jsonl", content("jsonl"))
            archive.writestr("b.txt.gz", gzip.compress(content("txt")))
            archive.writestr("c.txt", random.Random(0).randbytes(20_000).hex())
        whole = path.read_bytes()
        path.write_bytes(whole[:-30])
        assert len(texts(path)) == 5 and reasons(path) == {"unreadable_file": 1}
        path.write_bytes(whole[:-10_000])
        assert [text.replace("\n", "") for text in texts(path)[:4]] == [FIRST, SECOND] * 2
        assert len(texts(path)[4]) > 1000 and reasons(path) == {"unreadable_file": 2}
        assert f"{path}!c.txt#cut off" in [item.source_uri for item in read_documents(path)]


def parquet():
    written = io.BytesIO()
    pq.write_table(pa.table({"text": [FIRST, SECOND]}), written)
    return written.getvalue()


class Failing(io.FileIO):
    """A file of a disk that fails behind the first bytes."""

    def readinto(self, buffer):
        if self.tell() > 60:
            raise OSError(errno.EIO, "Input/output error")
        return super().readinto(memoryview(buffer)[:50])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.zip", "a.tar", "a.parquet", "a.txt"])
def test_a_failing_disk_is_no_damage_of_the_content(name, write, monkeypatch):
    kind = name.removeprefix("a.").removesuffix(".gz")
    whole = {"zip": members, "tar": members, "parquet": lambda _: parquet()}.get(kind, content)(kind)
    path = write(name, gzip.compress(whole) if name.endswith(".gz") else whole)
    monkeypatch.setattr("data.sources.archives.open_binary", lambda uri: io.BufferedReader(Failing(uri)))
    with pytest.raises(OSError, match="Input/output error") as failed:
        list(read_documents(path))
    assert failed.value.filename.startswith(str(path)) and disk_trouble(failed.value)


def test_a_full_disk_for_temporary_files_is_no_damage_of_the_content(write, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write("a.parquet.gz", gzip.compress(parquet()))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("data.sources.documents.copyfileobj", fill)
        list(read_documents(path))
    assert len(texts(path)) == 2


def test_a_cut_zip_file_is_read_on_behind_a_member_whose_header_has_no_size(tmp_path):
    path = tmp_path / "streamed.zip"  # as `zip corpus.zip -` writes its input
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.jsonl", "w", force_zip64=True) as member:
            member.write(content("jsonl"))
        archive.writestr("b.txt", content("txt"))
    path.write_bytes(path.read_bytes()[:-30])
    assert len(texts(path)) == 4 and reasons(path) == {"unreadable_file": 1}


def test_names_in_a_zip_file_of_chinese_windows_are_read_whole_or_cut(tmp_path):
    path = tmp_path / "corpus.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("abcd.txt", content("txt"))
    whole = path.read_bytes().replace(b"abcd.txt", "茶经.txt".encode("gbk"))
    for damage in (whole, whole[:-30]):
        path.write_bytes(damage)
        assert len(texts(path)) == 2
        assert next(read_documents(path)).source_uri == f"{path}!茶经.txt#line=1"


def test_what_is_wrong_behind_the_end_of_an_archive_is_reported(write):
    whole, other = members("tar.gz"), members("tar")
    wrong_sum = bytearray(whole)
    wrong_sum[-8] ^= 1
    for damaged, why in [(wrong_sum, "CRC check failed"), (whole + gzip.compress(other), "goes on after")]:
        path = write("corpus.tar.gz", damaged)
        assert len(texts(path)) == 4 and reasons(path)["unreadable_file"] == 1
        assert why in list(read_documents(path))[-1].source_uri


def test_an_archive_that_cannot_be_decompressed_says_why(write):
    without_members = gzip.compress(bytes(10240))
    for content in (members("tar.gz")[:10], without_members[:30]):
        path = write("corpus.tar.gz", content)
        (item,) = read_documents(path)
        assert "ended before the end-of-stream marker" in item.source_uri


def test_names_that_are_not_utf_8_are_escaped(tmp_path):
    path = tmp_path / "names.tar"
    with tarfile.open(path, "w", errors="surrogateescape") as archive:
        info = tarfile.TarInfo("\udcff.txt")
        info.size = len(content("txt"))
        archive.addfile(info, io.BytesIO(content("txt")))
    assert [item.source_uri for item in read_documents(path)][0] == f"{path}!\\udcff.txt#line=1"


@pytest.mark.parametrize(
    "page, prose",
    [
        (
            "---\ntitle: 茶\n---\n# 采茶\n\n要*趁早*上采，见[这里](https://a.cn/b)。\n\n"
            "```python\nx = 1\n```\n\n- 一芽二叶\n- 一芽一叶 ![图](a.png)\n\n"
            "| 名 | 时 |\n|---|---|\n| 明前 | 四月 |\n<!-- 看不见 -->\n",
            "采茶 要趁早上采，见这里。 一芽二叶 一芽一叶 名 时 明前 四月",
        ),
        ('!!! note "注意"\n    先洗手。\n\n    再泡茶。\n\n外面。', "注意 先洗手。 再泡茶。 外面。"),
        (
            '=== "C++"\n\n    ```cpp\n    int x;\n    ```\n\n    说明。\n\n=== "Go"\n\n    也一样。',
            "说明。 也一样。",
        ),
        ("??? question\n    ???+ tip\n        里面。\n\n    外面。", "里面。 外面。"),
        ("author: 张三\ntags: 茶\n\n作者：李四。", "作者：李四。"),
        ("---\n# 首页\nlayout: home\n---\n\n再泡茶。", "再泡茶。"),
        ("---\n先洗手。\n\n---\n再泡茶。", "先洗手。 再泡茶。"),
        (
            "# 茶\n\n    先*洗手*。\n\n    再泡茶。\n\n采茶：\n\n    int x = 0;  // 清零",
            "茶 先洗手。 再泡茶。 采茶：",
        ),
        ("::: tip 友情提示\n先洗手。\n:::", "友情提示 先洗手。"),
        (
            ":begin_tab:`mxnet`\n见 :numref:`sec_a`，再看。\n:end_tab:\n\n# 茶 {#tea}\n:label:`tea`",
            "见 ，再看。 茶",
        ),
        (
            ":warning: 先洗手。\n:numref:`fig_tea`描述了茶。\n:kbd:`回车`再加水。\n\n:rocket: Tea\n\n完。",
            "先洗手。 描述了茶。 回车再加水。 完。",
        ),
        (".. note:: 注意\n    先洗手。\n\n.. code-block:: c\n\n    ```\n    int\n    ```", "先洗手。"),
        (":author: 张三\n\n[source,java]\n\n正文。", "正文。"),
        (
            "<?quiz?>\nquestion: 茶要多热的水？\nanswer: 沸水\nanswer-correct: 八十度\ncontent:\n先凉一凉。\n"
            "<?/quiz?>\n\n见[这里](a.md){ .md-button target=_blank }。",
            "茶要多热的水？ 沸水 八十度 先凉一凉。 见这里。",
        ),
        (
            r"对任意$x_1 \in \mathbb{R}$与$\alpha$，$\frac{a}{b}$与`$x$`，价$5到$6，$PATH和$HOME，\\(p\\)。"
            "\n\n\\begin{equation}\\begin{split}\nx\n\\end{split}\\end{equation}\n\n\\begin{x}",
            r"对任意x_1 ∈R与α，与$x$，价$5到$6，$PATH和$HOME，p。 \begin{x}",
        ),
        ("我们得到\n\n$$\n\\lambda a\n$$\n\n\\begin{align}\nx\n\\end{align}\n\n其中。", "我们得到 其中。"),
        (
            "\\begin{theorem}\n先洗手。\n\\begin{align} a &= 一 \\end{align}\n\\end{theorem}\n"
            "\\begin{tabular}{cc} 表 & 格 \\end{tabular}\n"
            "\\begin{itemize}\n\\item 再泡茶。\n\\end{itemize}\n完",
            "先洗手。 再泡茶。 完",
        ),
        ("```py:\n\n```py\n!!! note\n```\n\n{{< copyable >}}\n价格为 $5，共 $6。", "价格为 $5，共 $6。"),
        (
            "<Intro>\n\n见 <Step n={1}>第一步</Step> 的 `<A>x</A>` 与 List<String>。\n\n</Intro>\n\n"
            "<Banner\n  chapter={6}\n/>\n\n## 参考 {/reference/}\n\n# 测验[[测验]]",
            "见 第一步 的 <A>x</A> 与 List<String>。 参考 测验",
        ),
    ],
)
def test_markdown_loses_its_markup_and_that_of_its_dialects_and_no_prose(page, prose):
    assert markdown_text(page).replace("\n\n", " ").replace("\n", " ") == prose


RST = """\
:author: 张三
:摘要: 关于茶。
:主题: 采

采茶
====

要 *趁早* 上采，见 `这
里 <https://a.cn>`_ 的 :ref:`图 <fig>`\\ 。[1]_ 用法如下::

    int 代码;

.. note::
   先 ``洗手``。

.. image:: 图.png
   :alt: 图

- 一芽
  二叶
- 一芽一叶

名词
    释义
其次
^^^^
+----+----+
| 名 | 时 |
+----+----+
"""
ASCIIDOC = """\
= 采茶
:author: 张三
// 看不见
[source,java]
----
int 代码;
----
要 *趁早* 上采，见 https://a.cn/b?c=d[这里] 的
image:a.png[图] <<fig,图>>。

 $ make 茶

NOTE: 先 `洗手`。
. 一芽
+
二叶
** 一芽一叶
名词:: 释义

.其次
|===
|名 |时
|===
"""


@pytest.mark.parametrize(
    "name, page, prose",
    [
        (
            "page.rst",
            RST,
            "关于茶。 采 采茶 要 趁早 上采，见 这里 的 图。 用法如下："
            " 先 洗手。 一芽二叶 一芽一叶 名词 释义 其次",
        ),
        (
            "page.adoc",
            ASCIIDOC,
            "采茶 要 趁早 上采，见 这里 的图。 先 洗手。 一芽 二叶 一芽一叶 名词：释义 其次 名 时",
        ),
    ],
)
def test_rst_and_asciidoc_give_their_words(tmp_path, name, page, prose):
    (tmp_path / name).write_text(page, encoding="utf-8")
    assert [text.replace("\n", " ") for text in texts(tmp_path / name)] == [prose]


@pytest.mark.parametrize(
    "code",
    [
        'import A from "b"',
        "import 'style.css'",
        "import {\n  A,\n  B,\n} from 'c'",
        "export default Layout",
        "export const meta = {\n  title: '标题', // 名字\n  tags: ['茶'],\n}",
        "export const broken = {",
        "{/* 看不见\n也看不见 */}",
    ],
)
def test_mdx_loses_its_statements_and_no_prose(write, code):
    prose = ["采茶", "import 是一个关键字。", "export default 后面是表达式。", "import duties on tea"]
    path = write("page.mdx", f"{code}\n\n# " + "\n\n".join(prose) + "\n")
    assert texts(path) == ["\n".join(prose)]


def test_a_web_page_gives_its_main_content(write):
    body = "".join(f"<p>{n}{FIRST * 6}{SECOND}</p>" for n in range(6))
    path = write(
        "page.html",
        f"<html><head><title>茶</title><style>p {{}}</style></head><body><nav><a href='/'>首页</a></nav>"
        f"<article>{body}</article><script>var x = '脚本';</script></body></html>",
    )
    (text,) = texts(path)
    assert text.count(SECOND) == 6 and "脚本" not in text and "<" not in text and "首页" not in text


def test_a_web_page_loses_its_listings_and_keeps_preformatted_prose(tmp_path):
    listing = "".join(f"for (int i{n} = 0; i{n} &lt; n; ++i{n}) a[i{n}] = 0;  // 清零\n" for n in range(40))
    pages = [f"<pre><code>{listing}</code></pre>", f"<pre class='cpp'>{listing}</pre>", ""]
    for name, code in enumerate(pages):
        body = f"<p>{FIRST}{SECOND}</p>{code}" * 4 + f"<pre>{FIRST}\n{SECOND}</pre>"
        (tmp_path / f"{name}.html").write_text(
            f"<html><body><article>{body}</article></body></html>", "utf-8"
        )
    with_code, by_share, without = (texts(tmp_path / f"{name}.html")[0] for name in range(3))
    assert with_code == by_share == without
    assert without.count(FIRST) == 5 and "清零" not in without


def test_urls_are_read_through_fsspec(tmp_path):
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(content("jsonl")))
    (folder / "a.zip").write_bytes(members("zip"))
    pq.write_table(pa.table({"text": [FIRST]}), folder / "c.parquet")
    files = find_files(f"file://{folder}")
    assert [base_name(f) for f in files] == ["a.zip", "b.jsonl.gz", "c.parquet"]
    assert len([text for uri in files for text in texts(uri)]) == 4 + 2 + 1


@pytest.mark.parametrize("name", ["corpus.parquet", "corpus.parquet.gz", "corpus.zip"])
def test_parquet_gives_its_documents(tmp_path, name):
    path = tmp_path / name
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"content": [FIRST, None, SECOND]}), table)
    packed = table.getvalue().to_pybytes()
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("deep/corpus.parquet", packed)
    else:
        path.write_bytes(gzip.compress(packed) if name.endswith(".gz") else packed)
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"text_not_string": 1}


def test_bytes_of_parquet_are_text_if_they_are_utf_8(tmp_path):
    path = tmp_path / "spark.parquet"
    pq.write_table(pa.table({"text": [FIRST.encode(), b"\x89PNG\xff", SECOND.encode(), None]}), path)
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"text_not_string": 2}
    with pytest.raises(InputError, match=r"guard\.parquet: no text"):
        make_guard((str(write_guard(tmp_path, b"\x89PNG\xff")),), 13, CleaningRules())
    guard = make_guard((str(write_guard(tmp_path, FIRST.encode())),), 13, CleaningRules())
    assert count_hits(guard, [[FIRST], [SECOND]]).tolist() == [1, 0]


def write_guard(folder, text):
    path = folder / "guard.parquet"
    pq.write_table(pa.table({"text": [text]}), path)
    return path


def test_text_of_parquet_that_is_not_utf_8_costs_only_its_bytes(tmp_path):
    content = FIRST.encode() + b"\xff"
    broken = pa.array([content, None, SECOND.encode()], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "corpus.parquet")
    assert texts(tmp_path / "corpus.parquet") == [f"{FIRST}\ufffd", SECOND]


def test_blank_lines_separate_documents_only_between_sentence_lines(write):
    path = write("one.txt", "第一段说采茶，有两句。第二句在这里。\n\n第二段说炒茶。\n")
    assert len(texts(path)) == 1
    assert len(texts(path, text_format="bert")) == 2
    path.write_text(BERT, encoding="utf-8")
    assert len(texts(path)) == 2
    assert len(texts(path, text_format="document")) == 1


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz"])
def test_of_a_damaged_file_what_is_whole_is_read(write, suffix):
    pack = PACKED[suffix]
    rows = [{"text": FIRST + hashlib.sha256(b"%d" % n).hexdigest()} for n in range(4000)]
    whole = pack("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = write(f"cut.jsonl{suffix}", whole[: len(whole) // 2])
    assert 1000 < len(texts(path)) < 3000 and reasons(path) == {"bad_json": 1, "unreadable_file": 1}
    path = write(f"cut.txt{suffix}", pack("\n".join(row["text"] for row in rows).encode())[:-2000])
    assert len("".join(texts(path))) > 200_000 and reasons(path) == {"unreadable_file": 1}


@pytest.mark.parametrize("name", ["zeros.tar", "empty.zip", "header.csv", "rows.parquet", "a.tar"])
def test_what_holds_nothing_has_a_row(tmp_path, name):
    empty, inner = io.BytesIO(), tarfile.TarInfo("b.tsv")
    with zipfile.ZipFile(empty, "w"):
        pass
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "rows.parquet")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        inner.size = 5
        archive.addfile(inner, io.BytesIO(b"text\n"))
    files = {"zeros.tar": bytes(10240), "empty.zip": empty.getvalue(), "header.csv": b"text\n"}
    if name in files:
        (tmp_path / name).write_bytes(files[name])
    place = f"{tmp_path / name}!b.tsv" if name == "a.tar" else str(tmp_path / name)
    assert list(read_documents(tmp_path / name)) == [Dropped(place, "empty_file")]


def test_lists_and_quotes_are_read_to_a_hundred_levels_and_deeper_ones_are_named(write):
    path = write("page.md", "".join(f"{'  ' * depth}- {FIRST}\n" for depth in range(40)))
    assert texts(path)[0].split("\n") == [FIRST] * 40
    for deep in (">" * 100 + FIRST, "- " * 60 + FIRST):
        path.write_text(f"{SECOND}\n\n{deep}\n", encoding="utf-8")
        assert list(read_documents(path)) == [Dropped(f"{path}#nested over 100 levels", "unreadable_file")]


def test_a_number_of_any_length_is_read(write):
    for first in ("", json.dumps({"text": FIRST}) + "\n"):
        path = write("numbers.jsonl", first + '{"n": ' + "9" * 6000 + f', "text": "{SECOND}"}}\n')
        assert texts(path)[-1] == SECOND and not reasons(path)


def test_a_huge_document_is_cut_into_several(write):
    path = write("corpus.txt", FIRST * 200_000)
    parts = texts(path)
    assert len(parts) == 3 and "".join(parts) == FIRST * 200_000
    assert all(part.endswith("。") for part in parts)


def test_a_very_long_line_is_cut_at_the_same_places(write, monkeypatch):
    path = write("corpus.txt", f"{SECOND}\n{FIRST * 100_000}\n{SECOND}\n")
    at_once = texts(path)
    monkeypatch.setattr("data.sources.documents.MAX_HELD_CHARACTERS", 1_100_000)
    monkeypatch.setattr("data.sources.decoding.LONGEST_LINE", 100_000)
    assert texts(path) == at_once
    uris = [item.source_uri for item in read_documents(path)]
    assert uris == [f"{path}#part={n}" for n in (1, 2)]


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
    names = [str(Path(p).relative_to(tmp_path)) for p in find_files(str(tmp_path))]
    assert names == sorted(names) and len(names) == 4
    assert [Path(p).name for p in find_files(str(tmp_path / "**/*.csv"))] == ["c.csv"]
    assert find_files(str(tmp_path / "*")) == find_files(str(tmp_path))  # as a shell's expansion of it
    with pytest.raises(InputError, match="an empty source"):
        find_files("")
