"""Markdown and its dialects, reStructuredText, AsciiDoc, MDX and HTML give their prose."""

import pytest

from data.sources.markup import markdown_text
from tests.data.sources.test_documents import FIRST, SECOND, texts


@pytest.mark.parametrize(
    "page, prose",
    [
        (
            "---\ntitle: 茶\ndate: 今天\n--- \n# 采茶\n\n要~~不~~*趁早*上采，见[这里](https://a.cn/b)。\n\n"
            "```python\nx = 1\n```\n\n- 一芽二叶\n- 一芽一叶 ![图](a.png)\n\n![图](b.png)\n\n"
            "| 名 | 时 |\n|---|---|\n| 明前 | 四月 |\n<!-- 看不见\n\n看不见 -->\n",
            "采茶 要不趁早上采，见这里。 一芽二叶 一芽一叶 名 时 明前 四月",
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
        ("title: 茶\n先洗手。  \n再泡茶。", "title: 茶 先洗手。 再泡茶。"),
        ("- ```c\n  int;\n  ```\n\n~~~\n```\n~~~\n!!! b\n    先洗手。", "先洗手。"),
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
            "\\begin{tabular}{cc} 表 \\end{tabular}水热。\n\\begin{align} a \\end{align}\n"
            "\\begin{itemize}\n  \\item[一] 再泡茶。\n\\end{itemize}\n完",
            "先洗手。 水热。 再泡茶。 完",
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

.. note:: 注意
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
------
int 代码;
----
要 *趁早* 上采，见 https://a.cn/b?c=d[这里] 的
 image:a.png[图] <<fig,图>>。

 $ make 茶
 $ make 水

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
再次
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
            " 注意 先 洗手。 一芽二叶 一芽一叶 烧水 泡茶tea pot (1) 洗杯 (2) 收杯 春眠 不觉晓 看见"
            " 名词 释义 其次 表后。",
        ),
        (
            "page.adoc",
            ASCIIDOC,
            "采茶 要 趁早 上采，见 这里 的图。 先 {a}。 一芽 二叶 一芽一叶 名词：释义 动词：无"
            " 甲乙 丙 丁 戊 己 庚辛壬 其次 再次 名 时",
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
