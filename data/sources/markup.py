"""Extract the text of Markdown, reStructuredText, AsciiDoc and HTML pages in reading order.

Libraries do the parsing: markdown-it-py for Markdown, trafilatura for the main content of a web page.
reStructuredText and AsciiDoc are turned into Markdown line by line, as far as their text needs it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from functools import cache
from html.entities import html5

from lxml import etree
from lxml import html as pages

# Jekyll's, Hugo's and MkDocs' front matter; a rule may stand first as well
_front_matter = re.compile(
    r"\A(?:--- *\n(?:#[^\n]*\n)*[\w-]+:.*?\n--- *(?:\n|\Z)"
    r"|\+\+\+ *\n.*?\n\+\+\+ *(?:\n|\Z)|(?:(?:author|title|date|tags|comments?)s?:[^\n]*\n)+(?=\n))",
    re.S | re.I,
)
# MDX adds comments in braces, imports and exports to Markdown
_mdx_comment = re.compile(r"\{/\*(?:(?!\{/\*).)*?\*/\}", re.S)
_statement = re.compile(
    r"import\s*(?:type\s+)?(?:[\w$]+\s*(?:,|\bfrom\b)|[{*\"'])"
    r"|export\s+(?:(?:default|const|let|var|function|async|class|type|interface)\b|[{*])"
)
_script_strings = re.compile(
    r"(?<!\\)\"(?:[^\"\\]|\\.)*\"|(?<!\\)'(?:[^'\\]|\\.)*'|`[^`]*`|//.*|/\*(?:(?!/\*).)*?\*/"
)
_han = re.compile("[\u4e00-\u9fff]")
# components of React: alone on their lines, or around a piece of a line
_component = re.compile(
    r'(?m)^ *</?[A-Z][\w.]*(?:\s[^<>\n]*|\s(?:"[^"<>]*"|[^<>\u4e00-\u9fff]){0,1000}+)?/?> *$'
)
_inline_component = re.compile(r"(?<![A-Za-z0-9_`])<([A-Z][\w.]*)(?:\s[^<>`\n]*)?>([^<>\n]*)</\1>")
_heading_anchor = re.compile(r"^(#+(?: .*?)?)(?<! ) *\[\[[^\[\]\n]*\]\] *$", re.M)
# what such a block holds does not begin another one: a search for its end takes no more than linear time
_comment = re.compile(r"<!--(?:(?!<!--).)*?-->", re.S)
_display_math = re.compile(r"\$\$.*?\$\$|\\\[(?:(?!\\\[).)*?\\\]", re.S)
_environment = re.compile(r"\\(begin|end)\{(\w+\*?)\}")
# environments of text, which stays; all others hold formulas, tables, pictures or code
_text_environment = re.compile(
    "abstract|center|claim|conclusion|conjecture|corollary|definition|description|document|enumerate|example"
    "|exercise|itemize|lemma|note|problem|proof|property|proposition|question|quotation|quote|remark|solution"
    "|theorem"
)
_latex_item = re.compile(r"^ *\\item(?:\[[^\]\n]*\])? *", re.M)
# Pandoc's rule: no space after the first sign, none before the last, no digit after it
_inline_math = re.compile(
    r"(?<![\\$`])\$(?![\s$])([^$\n`\u4e00-\u9fff]{1,500}?)(?<![\s\\])\$(?![$`0-9A-Za-z])"
    r"|\\\\\(([^\n`]{1,500}?)\\\\\)"
)
_math_font = re.compile(
    r"(?:\\(?:math[a-z]+|text[a-z]*|boldsymbol|bm|operatorname|hat|bar|tilde|vec))?\{([^{}\\]*)\}"
)
_math_command = re.compile(r"\\([A-Za-z]+) ?")
_fence = re.compile(r"\s*(?:(?:[-*+]|\d+[.)])\s+)?(`{3,}+(?!.*`)|~{3,}) *(.*)")
# blocks by indentation of MkDocs and Material, reStructuredText's within Markdown; a quoted title is prose
_indented_block = re.compile(
    r"( *)(?:(?:!!!|\?\?\?\+?) *[\w -]*(?:\"(?P<title>.*)\" *)?|===[!+]* *\".*\" *|\.\. [\w:-]+::.*)$"
)
# lines that are no text: fences of VuePress and Docusaurus, tabs, AsciiDoc's attributes and blocks, includes,
# and roles and fields without Chinese behind them
_marker = re.compile(
    r" *(?::::+ *\w* *(?P<title>.*)|@tab.*|\[(?:source|NOTE|TIP|quote)\b[^\]]*\]|-+8<-+.*"
    r"|:authors?: .*|:\w[\w-]*:(?:|`[^`]*`[^\u4e00-\u9fff]*| [^\u4e00-\u9fff]*))$"
)
# a quiz of MkDocs, and the names of its texts
_quiz = re.compile(r"<\?quiz\?>((?:(?!<\?quiz).)*?)<\?/quiz\?>", re.S)
_quiz_name = re.compile(r"^ *(?:question|answer(?:-correct)?|content):", re.M)
# within a line: cross-references, shortcodes, templates and anchors; at its beginning any role or field
_reference = re.compile(
    r"(?:^ *)?:(?:label|eqlabel|numref|eqref|ref|cite\w*|doc):`[^`\n]*`|^ *:\w[\w-]*:(?=[ `])"
    r"|\{\{[<%].{0,999}?[>%]\}\}|\{\{\{.{0,999}?\}\}\}|\{%.{0,999}?%\}|\{ ?[.#:/][^{}\n]*\}"
    r"|(?<=[)\]])\{[^{}\n]*\}"
)
# directives of reStructuredText, of which these hold text in their indented block, and a title after the name
_rst_directive = re.compile(r"\.\.(?: +(?P<name>[\w:-]+)::(?P<title>.*)| .*|)$")
_rst_text = re.compile(
    "admonition|attention|caution|danger|deprecated|epigraph|hint|important|note|pull-quote|rubric|seealso"
    "|sidebar|tip|topic|versionadded|versionchanged|warning"
)
_rst_rule = re.compile(r"(?!(?:::|\.\.)$)([!-/:-@\[-`{-~])\1+$|\|$")
_rst_table = re.compile(r"\+[-=+]+\+$|=+(?: +=+)+$")
_rst_item = re.compile(r"(?:[-*+•|]|\(?\w{1,3}[.)]|#\.) ")
_rst_inline = (
    (re.compile(r":[\w:+.-]{1,40}:(?=`)"), ""),  # roles
    (re.compile(r"^(?=:\w[\w-]*: )", re.M), "\n"),  # fields
    (re.compile(r"(?<!`)`([^`<>]++)<[^`<>]*>`_{0,2}(?!`)"), lambda match: match[1].rstrip()),  # links
    (re.compile(r"(?<!`)`([^`]+)`__?(?!\w)"), r"\1"),
    (re.compile(r" ?\[[#*\w]*\]_(?!\w)"), ""),  # footnotes
    (re.compile(r"\\ "), ""),
)
_asciidoc_code = re.compile(r"(?:-{4,}|\.{4,}|\+{4,}|/{4,})$|```")
_asciidoc_marker = re.compile(
    r"(?:={4,}|\*{4,}|_{4,}|--|\+|<{3}|'{3}|[|,:!]={3,})$"
    r"|\[.*\]$|//.*$|:!?[\w-]+!?:(?: .*)?$|\w+::[^\s\[]*\[.*\]$"
)
# what begins a title, an item or a note
_asciidoc_lead = re.compile(
    r"(?P<title>=+ |\.(?=\w))|[*.-]+ (?=\S)|(?:NOTE|TIP|IMPORTANT|WARNING|CAUTION): |<[\d.]+> "
)
_asciidoc_inline = (
    (re.compile(r"image:[^\s\[]{0,999}\[[^\]]{0,999}\]|footnote:\w{0,99}\[[^\]]{0,999}\]"), ""),
    # anchors, terms, callouts, line breaks
    (re.compile(r"\[\[[^\]]{0,99}\]\]|\({3}[^()]{0,99}\){3}|(?<=\S) +(?:<[\d.]+>|\+$)"), ""),
    # links
    (
        re.compile(r"(?:link:|xref:|mailto:|https?://|\{[\w-]+\})[!-Z\\^-~]{0,999}\[([^\]]{0,999}?)\^?\]"),
        r"\1",
    ),
    (re.compile(r"<<[^<>,]{0,99}(?:, *([^<>]*))?>>"), r"\1"),
    (re.compile(r"^(.*[^\s:]):{2,4}(?: +|$)"), r"* \1："),  # a term
    (re.compile(r"(?<!`)\{[a-z][\w-]*\}(?!`)"), ""),
)
# a code span that names an element, which cleaning would take for one
_named_element = re.compile(r"\A<(/?[A-Za-z][^<>]*)>\Z")
# characters that XML forbids, for which trafilatura finds no main content
_control = re.compile(r"(?i)&#(?:0*(?:[0-8]|1[124-9]|2\d|3[01])|x0*(?:[0-8bcef]|1[\da-f]|fff[ef]))(?!\w);?")
_latin_break = re.compile("(?<=[!-~])\n(?=[!-~])")


_MOST_LEVELS = 100  # of quotes and lists within one another, a list being two; the parser leaves out more


@cache
def _markdown():
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"maxNesting": _MOST_LEVELS}).enable("table").enable("strikethrough")


def markdown_text(content: str, *, join_lines: bool = False) -> str:
    """Extract a Markdown page's text without front matter, code, link targets and pictures.

    Blank lines separate blocks; `join_lines` joins the lines of each. Raises ValueError if nested too deep.

    >>> markdown_text("# 茶\\n\\n见[这里](https://a.cn)的`代码`。\\n\\n```\\nx = 1\\n```\\n")
    '茶\\n\\n见这里的代码。'
    """
    content = _front_matter.sub("", content)
    content = _without_environments(_display_math.sub("", _comment.sub("", content)))
    content = _heading_anchor.sub(r"\1", _inline_math.sub(_plain_math, content))
    content = _quiz.sub(lambda quiz: _quiz_name.sub("\n", quiz[1]), content)
    content = _inline_component.sub(r"\2", _component.sub("\n", content))
    lines: list[str] = []
    for token in _markdown().parse("\n".join(_without_dialects(content.split("\n")))):
        if token.type == "code_block" and _is_chinese(token.content):
            (token,) = _markdown().parseInline(token.content)
        if token.children:
            parts = [_inline(child.type, child.content) for child in token.children]
            block = "".join(parts).strip()
            lines.append(_latin_break.sub(" ", block).replace("\n", "") if join_lines else block)
        elif token.type == "html_block":
            lines.append(token.content)  # cleaning removes its tags
        elif token.type in ("blockquote_open", "list_item_open") and token.level >= _MOST_LEVELS - 1:
            raise ValueError(f"nested over {_MOST_LEVELS} levels")
    return "\n\n".join(line for line in lines if line)


def _without_environments(text: str) -> str:
    """Remove LaTeX's environments, each from its beginning to the next end of its name, but keep text."""
    marks = list(_environment.finditer(text))
    ends: dict[str, list[int]] = {}  # by name, the next one last
    for mark in reversed(marks):
        if mark[1] == "end":
            ends.setdefault(mark[2], []).append(mark.end())
    parts: list[str] = []
    at = 0
    for mark in marks:
        if mark[1] == "end":
            ends[mark[2]].pop()
        if mark.start() < at:
            continue
        if _text_environment.fullmatch(mark[2].rstrip("*")):
            parts += [_latex_item.sub("- ", text[at : mark.start()]), "\n"]
            at = mark.end()
        elif mark[1] == "begin" and ends.get(mark[2]):
            parts.append(text[at : mark.start()])
            at = ends[mark[2]][-1]
    return "".join([*parts, text[at:]])


def _plain_math(match: re.Match[str]) -> str:
    """Return a formula without its markup, or nothing if it is more than a line of characters."""
    plain = _math_font.sub(r"\1", _math_font.sub(r"\1", match[1] or match[2]))
    plain = _math_command.sub(lambda command: html5.get(f"{command[1]};", command[0]), plain)
    return "" if "\\" in plain or "{" in plain else plain


def _without_dialects(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines as plain Markdown: indented blocks at the margin, without markers and references."""
    depths = [0]  # columns that the enclosing blocks are indented
    fence: re.Match[str] | None = None
    for line in lines:
        while line.strip() and len(line) - len(line.lstrip(" ")) < depths[-1]:
            depths.pop()
        line = line[depths[-1] :]
        mark = _fence.match(line)
        if not fence:
            fence = mark
        elif mark and mark[1].startswith(fence[1]) and mark.start(1) - fence.start(1) < 4 and not mark[2]:
            fence = None
        if fence:
            yield line
        elif block := _indented_block.match(line):
            depths.append(depths[-1] + len(block[1]) + 4)
            yield from ("", block["title"] or "", "")
        elif marker := _marker.match(line):
            yield from ("", marker["title"] or "", "")
        else:
            yield _reference.sub("", line)


def _is_chinese(text: str) -> bool:
    """Whether an indented or preformatted block is prose rather than code."""
    return len(_han.findall(text)) >= 0.3 * len("".join(text.split()))


def _inline(kind: str, content: str) -> str:
    if kind in ("text", "code_inline", "html_inline"):
        return _named_element.sub(r"\1", content) if kind == "code_inline" else content
    return "\n" if kind in ("softbreak", "hardbreak") else ""


def rst_text(content: str) -> str:
    """Extract a reStructuredText page's text, without tables, literal blocks, and directives but notes.

    >>> rst_text("茶\\n==\\n\\n见 :ref:`泡茶 <tea>`::\\n\\n   int x;\\n\\n.. note:: 先洗手。")
    '茶\\n\\n见 泡茶：\\n\\n先洗手。'
    """
    text = "\n".join(_rst_lines(content.expandtabs().split("\n")))
    for pattern, plain in _rst_inline:
        text = pattern.sub(plain, text)
    return markdown_text(text, join_lines=True)


def _rst_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines as plain Markdown, all at the margin."""
    skipped: int | None = None  # columns; a block that is indented further is left out
    before, in_item, in_table = 0, False, False
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        depth, line = len(line) - len(line.lstrip()), line.strip()
        if skipped is not None and line and depth <= skipped:
            skipped = None
        in_table = bool(line) and (in_table or bool(_rst_table.match(line)))
        if skipped is not None or in_table or _rst_rule.match(line):
            yield ""
            continue
        if directive := _rst_directive.match(line):
            is_text = bool(_rst_text.fullmatch(directive["name"] or ""))
            # an empty comment begins no block behind a blank line
            skipped = None if is_text or (line == ".." and not after.strip()) else depth
            yield from ("", directive["title"] if is_text else "", "")
            continue
        if line.endswith("::"):
            skipped, line = depth, line[:-2].rstrip() and line[:-2].rstrip() + "："
        # other text begins with a list's next item, and where the indentation changes, but for an item's
        is_item = bool(_rst_item.match(line))
        if is_item if in_item and depth >= before else depth != before:
            yield ""
        before, in_item = depth, is_item or (in_item and depth > before)
        yield line.removeprefix("#. ").removeprefix("| ")


def asciidoc_text(content: str) -> str:
    """Extract an AsciiDoc page's text, without attributes, listings and macros.

    >>> asciidoc_text("= 茶\\n:toc:\\n\\n见 link:a.html[这里]。\\n\\n----\\nint x;\\n----\\n\\nTIP: 先洗手。")
    '茶\\n\\n见 这里。\\n\\n先洗手。'
    """
    lines = _asciidoc_lines(content.split("\n"))
    return markdown_text("\n".join(lines), join_lines=True)


def _asciidoc_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines as plain Markdown, all at the margin."""
    fence, before, is_code = "", "", False
    for line in map(str.rstrip, lines):
        if fence:
            fence, line = "" if line == fence else fence, ""
        elif opened := _asciidoc_code.match(line):
            fence, line = opened[0], ""
        # a paragraph of code follows its attributes, or is indented
        is_code = bool(line) and (
            is_code
            or line.startswith("[source")
            or (line[0] == " " and not before and not _asciidoc_lead.match(line.strip()))
        )
        before, line = line, line.strip()
        if is_code or _asciidoc_marker.match(line):
            yield ""
            continue
        for pattern, plain in _asciidoc_inline:
            line = pattern.sub(plain, line)
        if line.startswith("|"):
            yield from (part for cell in line.split("|") for part in (cell.strip(), ""))
        elif lead := _asciidoc_lead.match(line):
            yield from ("", line[lead.end() :], *[""] * bool(lead["title"]))
        else:
            yield line


def mdx_text(content: str) -> str:
    """Extract an MDX page's text, without imports, exports and comments."""
    lines = _mdx_comment.sub("", content).split("\n")
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

    try:
        page = _without_code(trafilatura.load_html(_control.sub("", content)))
        main = trafilatura.extract(page, favor_recall=True, include_comments=False)
    except (ValueError, etree.LxmlError):
        main = None
    return main or _all_text(content)


def _without_code(page: pages.HtmlElement | None) -> pages.HtmlElement | None:
    """Remove listings: preformatted blocks marked as code, or hardly Chinese."""
    if page is None:
        return None
    for block in list(page.iter("pre")):
        text = "".join(block.itertext())
        if block.find(".//code") is not None or not _is_chinese(text):
            block.drop_tree()
    for span in page.iter("code"):
        span.text = span.text and _named_element.sub(r"\1", span.text)
    return page


def _all_text(content: str) -> str:
    try:
        page = pages.document_fromstring(
            content.encode("utf-8", "replace"), parser=pages.HTMLParser(encoding="utf-8")
        )
    except Exception:  # lxml's parser errors have no common class
        return html.unescape(content)
    etree.strip_elements(page, "script", "style", "noscript", "template", with_tail=False)
    return "\n".join(text.strip() for text in page.itertext() if text.strip())
