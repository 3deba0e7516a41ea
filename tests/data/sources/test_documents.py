import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from data.cleaning import CleaningRules, count_hits, make_guard
from data.errors import InputError, disk_trouble
from data.sources import Dropped, RawDocument, find_files, read_documents
from data.sources.markup import markdown_text
from tests.data.helpers import parquet_of, tar_of, zip_of

FIRST, SECOND = "第一篇讲采茶。要趁早上采。", "第二篇讲炒茶。锅要烧热。"
BERT = "第一篇讲采茶。\n要趁早上采。\n\n\n第二篇讲炒茶。\n锅要烧热。\n"


def texts(path, **options):
    return [item.text for item in read_documents(path, **options) if isinstance(item, RawDocument)]


def reasons(path, **options):
    return Counter(item.reason for item in read_documents(path, **options) if isinstance(item, Dropped))


def places(path):
    return [item.source_uri for item in read_documents(path)]


ROWS = [{"text": FIRST}, {"text": SECOND}]
CONTENT = {
    "jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode(),
    "json": json.dumps(ROWS, ensure_ascii=False, indent=2).encode(),
    "csv": f"id,text\n1,{FIRST}\n2,{SECOND}\n".encode(),
    "tsv": f"\nid\ttext\n1\t{FIRST}\n2\t{SECOND}\n".encode(),
    "txt": BERT.encode(),
    "parquet": parquet_of(content=[FIRST, None, SECOND]),
}


def zstd(content):
    return pa.compress(content, codec="zstd", asbytes=True)


PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("compression", PACKED)
@pytest.mark.parametrize("kind", CONTENT)
def test_every_format_gives_its_documents(write, kind, compression):
    path = write(f"corpus.{kind}{compression}", PACKED[compression](CONTENT[kind]))
    for place in (path, f"file://{path}"):  # a URL is read through fsspec
        assert [text.replace("\n", "") for text in texts(place)] == [FIRST, SECOND]


# good files, a folder, a file of another kind, and names that lead out of their folder
MEMBERS = {
    "a.jsonl": CONTENT["jsonl"],
    "deep/": b"",
    "deep/b.txt.gz": gzip.compress(CONTENT["txt"]),
    "picture.png": b"\x89PNG",
    "../out.txt": b"\xe5\x87\xba",
    "deep/c.parquet": CONTENT["parquet"],
}
ARCHIVES = {
    "zip": zip_of(MEMBERS),
    "tar": tar_of(MEMBERS),
    "tar.zst": b"\x50\x2a\x4d\x18\4\0\0\0size" + zstd(tar_of(MEMBERS)),  # as pzstd writes it
    "tar.gz": tar_of(MEMBERS, "w:gz"),
    "tgz": tar_of(MEMBERS, "w:gz"),
    "tar.bz2": tar_of(MEMBERS, "w:bz2"),
    "tar.xz": tar_of(MEMBERS, "w:xz"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_give_the_documents_of_their_members(tmp_path, write, kind):
    path = write(f"corpus.{kind}", ARCHIVES[kind])
    for place in (path, f"file://{path}"):
        assert [text.replace("\n", "") for text in texts(place)] == [FIRST, SECOND] * 3
    assert reasons(path) == {"not_supported": 1, "unsafe_name": 1, "text_not_string": 1}
    assert {f"{path}!a.jsonl#line=1", f"{path}!deep/b.txt.gz#line=1"} < set(places(path))
    assert not (tmp_path.parent / "out.txt").exists()


def test_documents_before_the_damage_of_an_archive_are_read(write):
    path = write("cut.tar", ARCHIVES["tar"][:1400])
    assert texts(path)[:2] == [FIRST, SECOND] and reasons(path)["unreadable_file"] == 1
    noise = random.Random(0).randbytes(20_000).hex().encode()
    files = {"a.jsonl": CONTENT["jsonl"], "b.txt.gz": gzip.compress(CONTENT["txt"]), "c.txt": noise}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        whole = zip_of(files, method)
        path = write("cut.zip", whole[:-30])
        assert len(texts(path)) == 5 and reasons(path) == {"unreadable_file": 1}
        path = write("cut.zip", whole[:-10_000])
        assert [text.replace("\n", "") for text in texts(path)[:4]] == [FIRST, SECOND] * 2
        assert len(texts(path)[4]) > 1000 and reasons(path) == {"unreadable_file": 2}
        assert f"{path}!c.txt#cut off" in places(path)


@pytest.mark.parametrize(("at", "value"), [(0, 1), (2, 97)], ids=["a password", "an unknown method"])
def test_a_zip_member_that_cannot_be_opened_leaves_the_others_to_be_read(at, value, write):
    content = bytearray(zip_of({"shut.txt": CONTENT["txt"], "a.jsonl": CONTENT["jsonl"]}))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the member's own, and the directory's
        content[content.index(header) + flags + at] = value
    path = write("a.zip", bytes(content))
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"unreadable_file": 1}


class Failing(io.FileIO):
    """A file of a disk that fails behind the first bytes."""

    def readinto(self, buffer):
        if self.tell() > 60:
            raise OSError(errno.EIO, "Input/output error")
        return super().readinto(memoryview(buffer)[:50])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.zip", "a.tar", "a.parquet", "a.txt"])
def test_a_failing_disk_is_no_damage_of_the_content(name, write, monkeypatch):
    kind, _, packed = name.removeprefix("a.").partition(".")
    path = write(name, (gzip.compress if packed else bytes)((CONTENT | ARCHIVES)[kind]))
    monkeypatch.setattr("data.sources.archives.open_binary", lambda uri: io.BufferedReader(Failing(uri)))
    with pytest.raises(OSError, match="Input/output error") as failed:
        list(read_documents(path))
    assert failed.value.filename.startswith(str(path)) and disk_trouble(failed.value)


def test_a_full_disk_for_temporary_files_is_no_damage_of_the_content(write, monkeypatch):
    fill = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    path = write("a.parquet.gz", gzip.compress(CONTENT["parquet"]))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("data.sources.archives.copyfileobj", fill)
        list(read_documents(path))
    assert len(texts(path)) == 2


def test_a_cut_zip_file_is_read_on_behind_a_member_whose_header_has_no_size(tmp_path):
    path = tmp_path / "streamed.zip"  # as `zip corpus.zip -` writes its input
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.jsonl", "w", force_zip64=True) as member:
            member.write(CONTENT["jsonl"])
        archive.writestr("b.txt", CONTENT["txt"])
    path.write_bytes(path.read_bytes()[:-30])
    assert len(texts(path)) == 4 and reasons(path) == {"unreadable_file": 1}


def test_names_in_a_zip_file_of_chinese_windows_are_read_whole_or_cut(write):
    member, name = zipfile.ZipInfo("abcd.txt"), "茶经.txt"
    plain = zip_of({member: CONTENT["txt"]}).replace(b"abcd.txt", name.encode("gbk"))
    # Info-ZIP's field with the name in UTF-8, which Python reads from 3.12 on
    field = struct.pack("<BL", 1, zlib.crc32(name.encode("gbk"))) + name.encode()
    member.extra = struct.pack("<2H", 0x7075, len(field)) + field
    both = zip_of({member: CONTENT["txt"]}).replace(b"abcd.txt", name.encode("gbk"))
    for damage in (plain, plain[:-30], both):
        path = write("corpus.zip", damage)
        assert len(texts(path)) == 2
        assert places(path)[0] == f"{path}!茶经.txt#line=1"


WHOLE = ARCHIVES["tar.gz"]
ENDLESS = tarfile.TarInfo("tea.txt")
ENDLESS.size = 1 << 60


@pytest.mark.parametrize(
    "content, good, why",
    [
        (WHOLE[:-8] + bytes([WHOLE[-8] ^ 1]) + WHOLE[-7:], 6, "CRC check failed"),
        (WHOLE + gzip.compress(ARCHIVES["tar"]), 6, "goes on after"),
        (WHOLE[:10], 0, "ended before the end-of-stream marker"),
        (gzip.compress(bytes(10240))[:30], 0, "ended before the end-of-stream marker"),
        (ENDLESS.tobuf(tarfile.GNU_FORMAT) + bytes(1024), 0, "1152921504606846976 bytes"),
    ],
    ids=["wrong sum", "more behind its end", "cut in its header", "cut before a member", "a lying length"],
)
def test_what_is_wrong_with_an_archive_is_reported_behind_its_documents(write, content, good, why):
    path = write("corpus.tar.gz", content)
    assert len(texts(path)) == good and reasons(path)["unreadable_file"] == 1
    assert why in places(path)[-1]


def test_names_that_are_not_utf_8_are_escaped(write):
    path = write("names.tar", tar_of({"\udcff.txt": CONTENT["txt"]}))
    assert places(path)[0] == f"{path}!\\udcff.txt#line=1"


@pytest.mark.parametrize(
    "page, prose",
    [
        (
            "---\ntitle: 茶\ndate: 今天\n--- \n# 采茶\n\n要*趁早*上采，见[这里](https://a.cn/b)。\n\n"
            "```python\nx = 1\n```\n\n- 一芽二叶\n- 一芽一叶 ![图](a.png)\n\n"
            "| 名 | 时 |\n|---|---|\n| 明前 | 四月 |\n<!-- 看不见\n\n看不见 -->\n",
            "采茶 要趁早上采，见这里。 一芽二叶 一芽一叶 名 时 明前 四月",
        ),
        ('!!! note "注意" \n    先洗手。\n\n    再泡茶。\n\n外面。', "注意 先洗手。 再泡茶。 外面。"),
        (
            '=== "C++"\n\n    ```cpp\n    int x;\n    ```\n\n    说明。\n\n===! "Go"\n\n    也一样。',
            "说明。 也一样。",
        ),
        ("??? question\n    ???+ tip\n        里面。\n\n    外面。", "里面。 外面。"),
        (
            "Author: 张三\ntags: 茶\ntitle: 茶\ndate: 今天\ncomments: 无\n\n作者：李四。\n\n再泡茶。",
            "作者：李四。 再泡茶。",
        ),
        ("---\n# 首页\nlayout: home\n---\n\n再泡茶。", "再泡茶。"),
        ("+++\ntitle = '茶'\ndate = 1\n+++\n再泡茶。", "再泡茶。"),
        ("---\ntitle: 茶\n---", ""),
        ("---\n先洗手。\n\n---\n<p>\n再泡茶。", "先洗手。 <p> 再泡茶。"),
        (
            "# 茶\n\n    先*洗手*。\n\n    再泡茶。\n\n采茶：\n\n    int x = 0;  // 清零",
            "茶 先洗手。 再泡茶。 采茶：",
        ),
        ("::: tip 友情提示\n先洗手。\n:::", "友情提示 先洗手。"),
        (
            ":begin_tab:`a`\n见 :numref:`a`:eqref:`a`:ref:`a`:cite:`a`:doc:`a`，再看。\n:end_tab:\n\n"
            "# 茶 {#a}\n:label:`a`",
            "见 ，再看。 茶",
        ),
        (
            ":warning: 先洗手。\n:numref:`fig_tea`描述了茶。\n:kbd:`回车`再加水。\n\n:rocket: Tea\n\n完。",
            "先洗手。 描述了茶。 回车再加水。 完。",
        ),
        (".. note:: 注意\n    先洗手。\n\n.. code-block:: c\n\n    ```\n    int\n    ```", "先洗手。"),
        (
            ":author: 张三\n\n[source,java]\n[NOTE]\n[TIP]\n[quote, 甲]\n@tab 一\n--8<-- a\n[TIP](a)见[茶]",
            "TIP见[茶]",
        ),
        (
            "<?quiz?>\nquestion: 茶要多热的水？\nanswer: 沸水\nanswer-correct: 八十度\ncontent:\n先凉一凉。\n"
            "<?/quiz?>\n\n见[这里](a.md){ .md-button target=_blank }。",
            "茶要多热的水？ 沸水 八十度 先凉一凉。 见这里。",
        ),
        (
            r"\[x\]$\bm{a}\boldsymbol{b}\bar{c}\hat{d}\tilde{e}\vec{f}\text{g}\operatorname{\hat{h}}$，"
            r"$a_{b_{c_{d}}}$\$a$与$ a$与$b $。"
            r"对任意$x_1 \in \mathbb{R}$与$\alpha$，$\frac{a}{b}$与`$x$`，价$5到$6，$PATH和$HOME，\\(p\\)。"
            "\n\n\\begin{equation}\\begin{split}\nx\n\\end{split}\\end{equation}\n\n\\begin{x}",
            r"abcdefgh，$a$与$ a$与$b $。对任意x_1 ∈R与α，与$x$，价$5到$6，$PATH和$HOME，p。 \begin{x}",
        ),
        ("我们得到\n\n$$\n\\lambda a\n$$\n\n\\begin{align}\nx\n\\end{align}\n\n其中。", "我们得到 其中。"),
        (
            "\\begin{theorem*}\n先洗手。\n\\begin{align} a &= 一 \\end{align}\n\\end{theorem*}\n"
            "\\begin{tabular}{cc} 表 \\end{tabular}\n\\begin{align} a \\end{align}\n"
            "\\begin{itemize}\n  \\item[一] 再泡茶。\n\\end{itemize}\n完",
            "先洗手。 再泡茶。 完",
        ),
        (
            "```py:\n\n```py\n!!! a\n```\n\n{{< a >}}{% a %}{{{ a }}}![图](a){b=3}\n价 $5，共 $6。",
            "价 $5，共 $6。",
        ),
        (
            "```茶```是\n\n````md\n```c\n```\n````\n```\n!!! a\n    ```c\n    ```\n```\n!!! b\n    先洗手。",
            "茶是 先洗手。",
        ),
        (
            "<Intro>\n\n见<A.B n={1}>第一步</A.B> 的 `<A>x</A>`、`</p>` 与 List<String>。\n\n</Intro>\n\n"
            '<Banner\n  chapter={6} title="茶"\n/>\n\n## 参考 {/reference/}\n\n# 测验[[测验]]',
            "见第一步 的 <A>x</A>、/p 与 List<String>。 参考 测验",
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
要 *趁早* 上`采`_，见 `这
里 <https://a.cn>`_ 的 :ref:`图 <fig>`\\ 。[1]_ 用法如下::

    int 代码;

.. note::
   先 ``洗手``。

.. image:: 图.png
   :alt: 图

- 一芽
  二叶
- 一芽一叶

#. 烧水\n#. 泡茶\n   tea\n   pot\n\n(1) 洗杯\n(2) 收杯\n\n| 春眠\n|\n| 不觉晓\n
.. 看不见\n..\n   看不见\n\n..\n\n   看见\n\n== ==\n一 二\n== ==\n
名词
    释义
其次
^^^^
+----+----+
| 名 | 时 |
+----+----+

表后。

::

    int 代码;
"""
ASCIIDOC = """\
= 采茶
:revdate: 今天
// 看不见
[source,java]
----
int 代码;
----
要 *趁早* 上采，见 https://a.cn/b?c=d[这里] 的
image:a.png[图] <<fig,图>>。

 $ make 茶

NOTE: 先 `{a}`。
. 一芽
+
二叶
** 一芽一叶
名词:: 释义
动词::: 无

====\n****\n____\n--\n甲 <1> +\n乙(((索引)))[[a]]footnote:[注]\n--\n<<<\n'''\ntoc::[]\n[.lead]
IMPORTANT: 丙\nWARNING: 丁\nCAUTION: 戊\n<1> 己\n
....\n看不见\n....\n++++\n看不见\n++++\n////\n看不见\n////\n```c\n看不见\n```
xref:a[庚^]mailto:a@b.cn[辛]{a}{url}/a[壬]

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
            " 先 洗手。 一芽二叶 一芽一叶 烧水 泡茶tea pot (1) 洗杯 (2) 收杯 春眠 不觉晓 看见"
            " 名词 释义 其次 表后。",
        ),
        (
            "page.adoc",
            ASCIIDOC,
            "采茶 要 趁早 上采，见 这里 的图。 先 {a}。 一芽 二叶 一芽一叶 名词：释义 动词：无"
            " 甲乙 丙 丁 戊 己 庚辛壬 其次 名 时",
        ),
    ],
)
def test_rst_and_asciidoc_give_their_words(write, name, page, prose):
    assert [text.replace("\n", " ") for text in texts(write(name, page))] == [prose]


@pytest.mark.parametrize(
    "code",
    [
        'import A from "b"',
        "import 'style.css'",
        "import {\n  A,\n  B,\n} from 'c'",
        "import A, { B } from 'c'\nimport {A} from 'c'\nimport type A from 'c'",
        "export default A\nexport let a\nexport var b\nexport function c() {}\nexport async function d() {}\n"
        "export class E {}\nexport type F = 1\nexport interface G {}\nexport { a }\nexport * from 'b'",
        "export const a = \"\\\"茶(\", b = '\\'茶(', c = `茶(` /* 茶( */",
        "export const meta = {\n  title: '标题', // 名字\n  tags: ['茶'],\n}",
        "export const broken = {",
        "{/* 看不见\n也看不见 */}",
    ],
)
def test_mdx_loses_its_statements_and_no_prose(write, code):
    prose = ["Tea", "采茶", "import 是一个关键字。", "export default 后面是表达式。", "import duties on tea"]
    path = write("page.mdx", f"{code}\n\n# " + "\n\n".join(prose) + "\n")
    assert texts(path) == ["\n".join(prose)]


def test_a_web_page_gives_its_main_content_without_listings_and_with_preformatted_prose(write):
    listing = "".join(f"for (int i{n} = 0; i{n} &lt; n; ++i{n}) a[i{n}] = 0;  // 清零\n" for n in range(40))
    head, end = "<style>p {}</style><nav><a href='/'>首页</a></nav>", "<script>var x = '脚本';</script>"
    found = []
    for code in (f"<pre><code>{FIRST}</code></pre>", f"<pre class='cpp'>{listing}</pre>", ""):
        body = (
            f"<p>{FIRST}<code>&lt;h1&gt;</code>&#8;&#x1F;<code><b>x</b></code>{SECOND}</p>{code}" * 4
            + f"<pre>{FIRST}\n{SECOND}</pre>"
        )
        found += texts(write("page.html", f"<html><body>{head}<article>{body}</article>{end}</body></html>"))
    with_code, by_share, without = found
    assert with_code == by_share == without
    assert without.count(FIRST) == 5 and without.count("h1") == 4
    assert not [part for part in ("清零", "脚本", "首页", "p {", "<") if part in without]
    aside = f"<noscript><style>p {{}}</style></noscript><footer><template>p</template>{FIRST}</footer>{end}"
    assert texts(write("page.html", f"<html><body>{aside}</body></html>")) == [FIRST]
    assert texts(write("page.html", "<code>&lt;a&#65534;&gt;</code><!-- -->")) == ["<a\ufffe>"]
    assert texts(write("page.html", "<!-- -->")) == ["<!-- -->"]  # which cleaning removes


def test_text_of_parquet_that_is_not_utf_8_costs_only_its_bytes(write):
    broken = pa.array([FIRST.encode() + b"\xff", None, SECOND.encode()], pa.binary()).view(pa.string())
    assert texts(write("corpus.parquet", parquet_of(text=broken))) == [f"{FIRST}\ufffd", SECOND]


def test_bytes_of_parquet_are_text_if_they_are_utf_8(write):
    path = write("spark.parquet", parquet_of(text=[FIRST.encode(), b"\x89PNG\xff", SECOND.encode(), None]))
    assert texts(path) == [FIRST, SECOND] and reasons(path) == {"text_not_string": 2}
    picture = write("guard.parquet", parquet_of(text=[b"\x89PNG\xff"]))
    with pytest.raises(InputError, match=r"guard\.parquet: no text"):
        make_guard((str(picture),), 13, CleaningRules())
    guard = make_guard((str(write("g.parquet", parquet_of(text=[FIRST.encode()]))),), 13, CleaningRules())
    assert count_hits(guard, [[FIRST], [SECOND]]).tolist() == [1, 0]


@pytest.mark.parametrize("text_format, count", [("auto", 2), ("bert", 2), ("document", 1)])
def test_a_named_layout_takes_the_place_of_the_one_that_is_found(write, text_format, count):
    prose = "第一段说采茶，有两句。第二句在这里。\n\n第二段说炒茶。\n"
    assert len(texts(write("one.txt", BERT), text_format=text_format)) == count
    assert len(texts(write("two.txt", prose), text_format=text_format)) == 1 + (text_format == "bert")


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz"])
def test_of_a_damaged_file_what_is_whole_is_read(write, suffix):
    pack = PACKED[suffix]
    rows = [{"text": FIRST + hashlib.sha256(b"%d" % n).hexdigest()} for n in range(4000)]
    whole = pack("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = write(f"cut.jsonl{suffix}", whole[: len(whole) // 2])
    assert 1000 < len(texts(path)) < 3000 and reasons(path) == {"bad_json": 1, "unreadable_file": 1}
    path = write(f"cut.txt{suffix}", pack("\n".join(row["text"] for row in rows).encode())[:-2000])
    assert len("".join(texts(path))) > 200_000 and reasons(path) == {"unreadable_file": 1}


@pytest.mark.parametrize(
    "name, content",
    [
        ("zeros.tar", bytes(10240)),
        ("empty.zip", zip_of({})),
        ("mark.txt", b"\xef\xbb\xbf"),
        ("header.csv", b"text\n"),
        ("b.zip!rows.parquet", zip_of({"rows.parquet": parquet_of(text=pa.array([], pa.string()))})),
        ("a.tar!b.tsv", tar_of({"b.tsv": b"text\n"})),
    ],
)
def test_what_holds_nothing_has_a_row(write, name, content):
    path = write(name.split("!")[0], content)
    assert list(read_documents(path)) == [Dropped(str(path.with_name(name)), "empty_file")]


def test_lists_and_quotes_are_read_to_a_hundred_levels_and_deeper_ones_are_named(write):
    path = write("page.md", "".join(f"{'  ' * depth}- {FIRST}\n" for depth in range(40)))
    assert texts(path)[0].split("\n") == [FIRST] * 40
    for deep in (">" * 100 + FIRST, "- " * 60 + FIRST):
        path.write_text(f"{SECOND}\n\n{deep}\n", encoding="utf-8")
        assert list(read_documents(path)) == [Dropped(f"{path}#nested over 100 levels", "unreadable_file")]


def test_a_huge_document_is_cut_into_several_at_the_same_places_whatever_is_held(write, monkeypatch):
    lines = [SECOND, FIRST * 200_000, SECOND]
    path = write("corpus.txt", "\n".join([*lines, ""]))
    at_once = texts(path)
    assert len(at_once) == 3 and "".join(at_once).replace("\n", "") == "".join(lines)
    assert all(part.endswith("。") for part in at_once)
    monkeypatch.setattr("data.sources.documents.MAX_HELD_CHARACTERS", 1_100_000)
    monkeypatch.setattr("data.sources.decoding.LONGEST_LINE", 100_000)
    assert texts(path) == at_once
    assert places(path) == [f"{path}#part={n}" for n in (1, 2, 3)]
    monkeypatch.setattr("data.sources.documents.MAX_HELD_CHARACTERS", 20)
    path = write("lines.txt", f"{FIRST}\n{SECOND}\n" * 3)
    assert places(path) == [f"{path}{place}" for place in ("", "#line=3", "#line=5")]


@pytest.mark.parametrize(
    "source, message",
    [
        ("HERE/no", "does not exist"),
        ("HERE/empty", "holds no file"),
        ("HERE/*.txt", "exist"),
        ("", "an empty source"),
        ("HERE/a.docx", "not a supported input"),
    ],
)
def test_nothing_to_read_is_an_error(tmp_path, source, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.docx").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        find_files(source.replace("HERE", str(tmp_path)))


def test_folders_and_globs_are_searched_in_order(tmp_path, write):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.jsonl", "名字 有空格 (1).txt", "deep/c.csv"):
        write(name, "text\n")
    names = [str(Path(p).relative_to(tmp_path)) for p in find_files(str(tmp_path))]
    assert names == sorted(names) and len(names) == 4
    assert [Path(p).name for p in find_files(str(tmp_path / "**/*.csv"))] == ["c.csv"]
    assert find_files(str(tmp_path / "*")) == find_files(str(tmp_path))  # as a shell's expansion of it
    assert find_files(f"file://{tmp_path}") == [f"file://{tmp_path / name}" for name in names]
