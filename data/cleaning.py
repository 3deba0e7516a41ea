"""Text cleaning: one normal form for the same words, and nothing in it that no reader would see.

Unicode NFKC (UAX #15) makes full-width Latin, ligatures and compatibility forms plain, but would turn Chinese
punctuation into ASCII; those characters are kept as they are. `clean_text` is idempotent.
"""

from __future__ import annotations

import html
import re
import unicodedata

# full-width punctuation that Chinese text is written with; NFKC maps each of these to ASCII
KEPT_PUNCTUATION = "！（），：；？～…—＂＇％＆＊＋．／＜＝＞＠［］｛｝｜￥"
_other_text = re.compile(f"[^{re.escape(KEPT_PUNCTUATION)}]+")

# control characters but tab and line ends; zero-width, bidi and other format characters; private use; the
# byte-order mark, lone surrogates, non-characters and the replacement character left by a failed decode
_invisible = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ufffd-\uffff\ud800-\udfff\ue000-\uf8ff"
    "\ufe00-\ufe0f\U000e0000-\U000e0fff\U000f0000-\U0010ffff]+"
)
_line_end = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_spaces = re.compile(r"[^\S\n]+")
_edge_spaces = re.compile(r" ?\n ?")
_blank_lines = re.compile(r"\n{2,}")

# names of HTML elements, so that `a < b` and `List<String>` stay
_TAGS = [
    "a",
    "abbr",
    "address",
    "article",
    "aside",
    "audio",
    "b",
    "big",
    "blockquote",
    "body",
    "br",
    "button",
    "caption",
    "center",
    "cite",
    "code",
    "col",
    "dd",
    "del",
    "div",
    "dl",
    "dt",
    "em",
    "embed",
    "fieldset",
    "figcaption",
    "figure",
    "font",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "input",
    "ins",
    "label",
    "li",
    "link",
    "main",
    "mark",
    "meta",
    "nav",
    "noscript",
    "object",
    "ol",
    "option",
    "p",
    "param",
    "path",
    "pre",
    "q",
    "s",
    "section",
    "select",
    "small",
    "source",
    "span",
    "strike",
    "strong",
    "sub",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "time",
    "title",
    "tr",
    "tt",
    "u",
    "ul",
    "video",
]
_unseen_markup = re.compile(r"<!--.*?-->|<(script|style)\b[^<>]*>.*?</\1\s*>|<!doctype[^<>]*>", re.I | re.S)
_block_tag = re.compile(r"</?(?:p|br|div|li|tr|h[1-6]|title|section|article|table|ul|ol)\b[^<>]*>", re.I)
_tag = re.compile(rf"</?(?:{'|'.join(_TAGS)})\b[^<>]*>", re.I)
_image = re.compile(r"!\[[^\[\]\n]*\]\([^()\n]*\)")
_link = re.compile(r"\[([^\[\]\n]+)\]\([^()\n]*\)")
# only characters a URL may have (RFC 3986), so that Chinese written straight after it stays
_url = re.compile(r"(?:\b(?:https?|ftp)://|\bwww\.)[\w\-.~:/?#@!$&'()*+,;=%]+", re.I | re.A)
_may_hold_markup = re.compile(r"[<&]|\]\(|://|www\.", re.I)


def normalize(text: str) -> str:
    """NFKC of everything but Chinese punctuation.

    >>> normalize("ＡＢＣ，１２３！")
    'ABC，123！'
    """
    if unicodedata.is_normalized("NFKC", text):
        return text
    return _other_text.sub(lambda run: unicodedata.normalize("NFKC", run[0]), text)


def strip_markup(text: str) -> str:
    """Without HTML elements, entities, Markdown links and URLs; block elements become line ends."""
    text = html.unescape(text)
    text = _unseen_markup.sub("\n", text)
    text = _tag.sub("", _block_tag.sub("\n", text))
    text = _link.sub(r"\1", _image.sub("", text))
    return _url.sub("", text)


def clean_text(text: str) -> str:
    """Normal form of a text: lines joined by a single line end, no blank line, no outer space. Idempotent.

    >>> clean_text("<p>今天&nbsp;天气很好。</p>\\r\\n\\r\\n见 https://a.cn/b ，谢谢！")
    '今天 天气很好。\\n见 ，谢谢！'
    """
    while True:
        before = text
        text = _line_end.sub("\n", text)
        text = normalize(_invisible.sub("", text))
        if _may_hold_markup.search(text):
            text = strip_markup(text)
        text = _edge_spaces.sub("\n", _spaces.sub(" ", text))
        text = _blank_lines.sub("\n", text).strip(" \n")
        # what came out of an entity or from between two tags may be markup again
        if text == before or not _may_hold_markup.search(before):
            return text
