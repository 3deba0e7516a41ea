"""Clean text: give the same words one normal form and remove everything invisible.

Unicode NFKC (UAX #15) turns full-width Latin, ligatures and compatibility forms into plain letters. Chinese
punctuation, which it would make ASCII, stays, and so do 10², 2½ and ①②, which it would make 102, 21/2 and 12.
`clean_text` is idempotent.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from functools import cache
from itertools import count

from data.cleaning.privacy import URL, scrub
from data.cleaning.settings import CleaningRules

# full-width punctuation of Chinese text, which NFKC would map to ASCII
KEPT_PUNCTUATION = "！（），：；？～…—＂＇％＆＊＋．／＜＝＞＠［］｛｝｜￥"
# raised digits and signs, fractions, numbers in circles, square and cubic units, as ranges
_kept_numbers = "¹²³⁰⁴-⁾¼-¾⅐-⅞①-⑳㉑-㉟㊱-㊿㎟-㎦"
_other_text = re.compile(f"[^{re.escape(KEPT_PUNCTUATION)}{_kept_numbers}]+")

# control characters but tab and line ends; zero-width, bidi and other format characters; private use; the
# byte-order mark, lone surrogates, non-characters and the replacement character left by a failed decode
_invisible = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffd-\uffff\ud800-\udfff\ue000-\uf8ff"
    "\ufe00-\ufe0f\U000e0000-\U000e0fff\U000f0000-\U0010ffff]+"
)
# what most texts are made of: nothing that is invisible or that NFKC changes, and no other white space
_plain = re.compile(f"[\n -~·×—‘’“”…、。〈-】〔-〛─-▟α-ω\u4e00-\u9fff{re.escape(KEPT_PUNCTUATION)}]*+")
_line_end = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_spaces = re.compile(r"[^\S\n]+")
_edge_spaces = re.compile(r" ?\n ?")
_blank_lines = re.compile(r"\n{2,}")

# names of HTML elements, and attributes in ASCII, so that `a < b`, `a<b，c>d` and `List<String>` stay
_TAGS = (
    "a|abbr|address|article|aside|audio|b|big|blockquote|body|br|button|caption|center|cite|code|col|"
    "dd|del|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|h1|h2|h3|h4|h5|h6|head|"
    "header|hr|html|i|iframe|img|input|ins|label|li|link|main|mark|meta|nav|noscript|object|ol|option|"
    "p|param|path|pre|q|s|script|section|select|small|source|span|strike|strong|style|sub|summary|sup|svg|table|"
    "tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|video"
)
_ATTRIBUTES = r"(?:\s+[a-z:@_-][^<>=]*=[^<>]*|(?:\s+[a-z-]+)?\s*/?)"
# blocks that are not seen, by how they begin and end
_blocks = re.compile(r"(?P<comment><!--)|<(?P<element>script|style)\b[^<>]*>|^ *```[^`\n]*\n", re.I | re.M)
_block_ends = {
    "comment": re.compile("-->"),
    "script": re.compile(r"</script\s*>", re.I),
    "style": re.compile(r"</style\s*>", re.I),
    "code": re.compile(r"^ *```+ *$", re.M),
}
_sentence_end = re.compile("[。！？]")
_doctype = re.compile(r"<!doctype[^<>]*>", re.I)
_block_tag = re.compile(
    rf"</?(?:p|br|div|li|tr|h[1-6]|title|section|article|table|ul|ol){_ATTRIBUTES}>", re.I
)
_tag = re.compile(rf"</?(?:{_TAGS}){_ATTRIBUTES}>", re.I)
_target = r"\((?:[^()\n]|\([^()\n]*\))*+\)"
_image = re.compile(rf"!\[[^\[\]\n]*\]{_target}")
_link = re.compile(rf"\[([^\[\]\n]+)\]{_target}")
# with the brackets around it, which would be empty
_url = re.compile(rf"[(（\[【「<] ?{URL.pattern} ?[)）\]】」>]|{URL.pattern}", URL.flags)
_SIGNS = ("<", "&", "](", "://", "www.", "WWW.", "```")  # a text without any of these holds no markup
_markup_signs = re.compile(r"[<>&\[\]`]")
_escaped_again = re.compile("&(?:amp;)+")
REMOVED_URL = "removed_url"  # counted with the kinds of personal data
_MOST_PASSES = 8  # what holds markup within markup more often is no text, and loses its signs
# encoded data or damage: no tokenizer accepts such a word (BERT's gives up at 100 letters)
_endless_word = re.compile(r"[A-Za-z0-9+/=_\-]{101,}")


def normalize(text: str) -> str:
    """Apply NFKC to everything except Chinese punctuation and numbers that it would change.

    >>> normalize("ＡＢＣ，１２３！①４×10⁹个，共2½㎡")
    'ABC，123！①4×10⁹个，共2½㎡'
    """
    if unicodedata.is_normalized("NFKC", text):
        return text
    return _other_text.sub(lambda run: unicodedata.normalize("NFKC", run[0]), text)


def strip_markup(text: str, *, was_escaped: bool = False) -> tuple[str, int]:
    """Remove HTML elements, fenced code, Markdown links and URLs, count the URLs, and decode entities.

    Block elements become line ends. Entities may give new markup, which another call removes; what it calls a
    script or a comment may be prose between two mentions of an element, and stays if it has a sentence end.
    """
    text = _doctype.sub("\n", _without_blocks(text, keep_prose=was_escaped))
    text = _tag.sub("", _block_tag.sub("\n", text))
    text = _link.sub(r"\1", _image.sub("", text))
    text, urls = _url.subn("", text)  # before `&times` in one of them is taken for an entity
    return html.unescape(_escaped_again.sub("&", text)), urls


def _without_blocks(text: str, *, keep_prose: bool) -> str:
    """Remove comments, scripts, styles and fenced code in linear time: a missing end is sought once."""
    parts: list[str] = []
    at = place = 0
    endless = set[str]()
    while begin := _blocks.search(text, place):
        kind = (begin["element"] or ("comment" if begin["comment"] else "code")).lower()
        end = None if kind in endless else _block_ends[kind].search(text, begin.end())
        if end:
            within = text[begin.end() : end.start()]
            is_prose = keep_prose and kind != "code" and _sentence_end.search(within)
            parts += [text[at : begin.start()], within if is_prose else "\n"]
            at = place = end.end()
        else:
            endless.add(kind)
            place = begin.end()
    return "".join([*parts, text[at:]])


def clean_text(text: str, rules: CleaningRules = CleaningRules()) -> str:
    """Clean a text: one line end between lines, no blank lines, no outer space. Idempotent.

    >>> clean_text("<p>今天&nbsp;天气很好。</p>\\r\\n\\r\\n见 https://a.cn/b ，谢谢！")
    '今天 天气很好。\\n见 ，谢谢！'
    """
    return clean_and_count(text, rules)[0]


def clean_and_count(text: str, rules: CleaningRules) -> tuple[str, dict[str, int]]:
    """Clean a text; count the replacements of each kind of personal data, and the URLs that are removed."""
    changed = Counter[str]()
    for number in count(1):
        before = text
        is_plain = _plain.fullmatch(text) is not None
        if not is_plain:
            text = _invisible.sub("", _line_end.sub("\n", text))
            text = normalize(text) if rules.fold_width else text
        # before links and addresses lose their marks
        text, counts = scrub(text, rules.scrub)
        changed.update(counts)
        has_markup = any(sign in text for sign in _SIGNS)
        if has_markup:
            text, urls = strip_markup(text, was_escaped=number > 1)
            if urls:
                changed[REMOVED_URL] += urls
        text = _endless_word.sub("", text)
        if rules.max_repeats:
            text = _repeated(rules.max_repeats).sub(r"\1", text)
        if rules.simplify:
            text = to_simplified(text)
        if not is_plain or "  " in text:
            text = _spaces.sub(" ", text)
        if " \n" in text or "\n " in text:
            text = _edge_spaces.sub("\n", text)
        text = _blank_lines.sub("\n", text).strip(" \n")
        # entities and removed tags may leave new markup
        if text == before or not has_markup:
            break
        if number == _MOST_PASSES:
            text = _markup_signs.sub("", text)
    return text, changed


@cache
def _repeated(limit: int) -> re.Pattern[str]:
    """Match more than `limit` of the same mark in a row; the group is the marks that stay."""
    return re.compile(rf"(([^\w\s])\2{{{limit - 1}}})\2+")


def to_simplified(text: str) -> str:
    """Replace traditional characters and phrases by OpenCC's t2s."""
    return _simplifier().convert(text)


@cache
def _simplifier():
    import opencc

    return opencc.OpenCC("t2s")
