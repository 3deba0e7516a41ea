"""Split text into sentences, after Chinese and Western enders and the closing quotes and brackets."""

from __future__ import annotations

import re

ENDERS = "。！？!?；;…"
CLOSERS = "”’」』）》】〕〉\"')]}"
COMMAS = "，、：,"

_closers = f"[{re.escape(CLOSERS)}]*+"
# with the comma that goes on with the sentence: “好！”，他说
_ender = re.compile(f"(?:[{ENDERS}]++{_closers})++[{COMMAS}]?+")
# a Western full stop ends a sentence before a space or line end, except after an initial ("J. Smith")
_full_stop = re.compile(rf"(?<![A-Z])(?<=[^\W\d_])\.{_closers}(?=\s|$)")
# a full-width one anywhere but in a number (3．14) and after the number of an item (2．, A．)
_wide_stop = re.compile(
    rf"(?<!^\w)(?<!^\d\d)(?<!\s\w)(?<!\s\d\d)．(?!(?<=\d．)\d){_closers}(?![{COMMAS}])", re.M
)
_word = re.compile(r"\w")
_BEFORE = COMMAS + " "


def _with_line_end(match: re.Match[str]) -> str:
    return match[0] if match[0][-1] in COMMAS else match[0] + "\n"


def split_sentences(text: str) -> list[str]:
    """Split a cleaned text into sentences without the spaces between them; a line end always ends one.

    Marks alone are no sentence, and none begins with a comma: such marks of a line are left out.

    >>> split_sentences("他说：“下雨了。”然后走了！")
    ['他说：“下雨了。”', '然后走了！']
    """
    text = _ender.sub(_with_line_end, text)
    if "." in text:
        text = _full_stop.sub(_with_line_end, text)
    if "．" in text:
        text = _wide_stop.sub(_with_line_end, text)
    return [line.lstrip(_BEFORE) for line in map(str.strip, text.split("\n")) if _word.search(line)]
