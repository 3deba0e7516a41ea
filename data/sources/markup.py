"""Extract the text of Markdown and HTML pages in reading order.

Libraries do the parsing: markdown-it-py for Markdown, trafilatura for the main content of a web page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from functools import cache

from data.sources.plain_text import join_wrapped

# Jekyll's, Hugo's and MkDocs' front matter
_front_matter = re.compile(
    r"\A(?:---\n.*?\n---\n|\+\+\+\n.*?\n\+\+\+\n|(?:(?:author|title|date|tags|comments?)s?:.*\n)+(?=\n))",
    re.S | re.I,
)
# MDX adds comments in braces, imports and exports to Markdown
_mdx_comment = re.compile(r"\{/\*.*?\*/\}", re.S)
_statement = re.compile(
    r"import\s*(?:type\s+)?(?:[\w$]+\s*(?:,|\bfrom\b)|[{*\"'])"
    r"|export\s+(?:(?:default|const|let|var|function|async|class|type|interface)\b|[{*])",
    re.A,
)
_script_strings = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|//.*|/\*.*?\*/")
_han = re.compile("[\u4e00-\u9fff]")
_comment = re.compile(r"<!--.*?-->", re.S)
_display_math = re.compile(r"\$\$.*?\$\$|\\\[.*?\\\]|\\begin\{(\w+\*?)\}.*?\\end\{\1\}", re.S)
_fence = re.compile(r"\s*(?:```|~~~)")
# blocks by indentation of MkDocs, Material and reStructuredText; a quoted title is prose
_indented_block = re.compile(
    r"( *)(?:(?:!!!|\?\?\?\+?) *[\w -]*(?:\"(?P<title>.*)\")?|=== *!?\".*\"|\.\. [\w:-]+::.*)$"
)
# lines that are no text: fences of VuePress and Docusaurus, tabs, AsciiDoc's attributes and blocks, includes
_marker = re.compile(
    r" *(?::::+ *\w* *(?P<title>.*)|@tab.*|:[\w-]+:(?:[ `].*)?|\[(?:source|NOTE|TIP|quote)\b.*\]|-+8<-+.*)$"
)
# within a line: cross-references, shortcodes, templates and anchors
_reference = re.compile(
    r":(?:label|eqlabel|numref|eqref|ref|cite\w*|doc):`[^`\n]*`|\{\{[<%].*?[>%]\}\}|\{%.*?%\}|\{[#:][^{}\n]*\}"
)


@cache
def _markdown():
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").enable("strikethrough")


def markdown_text(content: str) -> str:
    """Extract a Markdown page's text, a block a line, without front matter, code, link targets and pictures.

    >>> markdown_text("# 茶\\n\\n见[这里](https://a.cn)的`代码`。\\n\\n```\\nx = 1\\n```\\n")
    '茶\\n见这里的代码。'
    """
    content = _front_matter.sub("", content.replace("\r\n", "\n"))
    content = _display_math.sub("", _comment.sub("", content))
    lines: list[str] = []
    for token in _markdown().parse("\n".join(_without_dialects(content.split("\n")))):
        if token.type == "inline" and token.children:
            parts = [_inline(child.type, child.content) for child in token.children]
            lines.append("".join(parts).strip())
        elif token.type == "html_block":
            lines.append(token.content)  # cleaning removes its tags
    return join_wrapped("\n\n".join(line for line in lines if line)).replace("\n\n", "\n")


def _without_dialects(lines: Sequence[str]) -> Iterator[str]:
    """Lines as plain Markdown: indented blocks at the margin, without markers and references."""
    depths = [0]  # columns that the enclosing blocks are indented
    in_code = False
    for line in lines:
        while line.strip() and len(line) - len(line.lstrip(" ")) < depths[-1]:
            depths.pop()
        line = line[depths[-1] :]
        in_code ^= bool(_fence.match(line))
        if in_code:
            yield line
        elif block := _indented_block.match(line):
            depths.append(depths[-1] + len(block[1]) + 4)
            yield from ("", block["title"] or "", "")
        elif marker := _marker.match(line):
            yield from ("", marker["title"] or "", "")
        else:
            yield _reference.sub("", line)


def _inline(kind: str, content: str) -> str:
    if kind in ("text", "code_inline", "html_inline"):
        return content
    return "\n" if kind in ("softbreak", "hardbreak") else ""


def mdx_text(content: str) -> str:
    """Extract an MDX page's text, without imports, exports and comments."""
    lines = _mdx_comment.sub("", content.replace("\r\n", "\n")).split("\n")
    return markdown_text("\n".join(_without_statements(lines)))


def _without_statements(lines: list[str]) -> Iterator[str]:
    """Drop imports and exports, each up to its closing bracket or a blank line.

    A line with Chinese outside strings and comments is prose, whatever word it begins with.
    """
    depth = 0
    for line in lines:
        code = _script_strings.sub("", line)
        is_code = (depth > 0 or _statement.match(line)) and line.strip() and not _han.search(code)
        if not is_code:
            depth = 0
            yield line
            continue
        depth = max(depth, 0) + sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))


def html_text(content: str) -> str:
    """Extract the main content of a web page, or all its text if there is none."""
    import trafilatura
    from lxml import etree

    try:
        main = trafilatura.extract(content, favor_recall=True, include_comments=False, deduplicate=False)
        return main or _all_text(content)
    except (ValueError, etree.LxmlError):
        return _all_text(content)


def _all_text(content: str) -> str:
    from lxml import html as pages

    try:
        page = pages.document_fromstring(
            content.encode("utf-8", "replace"), parser=pages.HTMLParser(encoding="utf-8")
        )
    except Exception:  # lxml's parser errors have no common class
        return html.unescape(content)
    for element in page.iter("script", "style", "noscript", "template"):
        element.drop_tree() if element.getparent() is not None else None
    return "\n".join(text.strip() for text in page.itertext() if text.strip())
