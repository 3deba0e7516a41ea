"""Split text into sentences, after Chinese and Western enders and the closing quotes and brackets."""

from __future__ import annotations

import re

ENDERS = "。！？!?；;…"
CLOSERS = "”’」』）》】〕〉\"')]}"

_closers = f"[{re.escape(CLOSERS)}]*"
_ender = re.compile(f"[{ENDERS}]+{_closers}")
# a Western full stop ends a sentence before a space or line end, except after an initial ("J. Smith")
_full_stop = re.compile(rf"(?<![A-Z])(?<=[^\W\d_])\.(?={_closers}(?:\s|$)){_closers}")


def split_sentences(text: str) -> list[str]:
    """Split a cleaned text into sentences without the spaces between them; a line end always ends one.

    >>> split_sentences("他说：“下雨了。”然后走了！")
    ['他说：“下雨了。”', '然后走了！']
    """
    text = _ender.sub("\\g<0>\n", text)
    if "." in text:
        text = _full_stop.sub("\\g<0>\n", text)
    return [sentence for sentence in map(str.strip, text.split("\n")) if sentence]
