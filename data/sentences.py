"""Sentence splitting: after Chinese and Western enders; closing quotes and brackets stay with their
sentence.
"""

from __future__ import annotations

import re

ENDERS = "。！？!?；;…"
CLOSERS = "”’」』）》】〕〉\"')]}"

# a Western full stop ends a sentence where a space or the line's end follows, except after an initial ("J.
# Smith")
_boundary = re.compile(
    rf"(?:[{ENDERS}]+|(?<![A-Z])(?<=[^\W\d_])\.(?=[{re.escape(CLOSERS)}]*(?:\s|$)))[{re.escape(CLOSERS)}]*"
)


def split_line(line: str) -> list[str]:
    """Sentences of one line, in order; joined they are the line without the spaces between sentences.

    >>> split_line("他说：“下雨了。”然后走了！")
    ['他说：“下雨了。”', '然后走了！']
    """
    sentences, start = [], 0
    for boundary in _boundary.finditer(line):
        sentences.append(line[start : boundary.end()].strip())
        start = boundary.end()
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def split_sentences(text: str) -> list[str]:
    """Sentences of a cleaned text. A line end is always a sentence end."""
    return [sentence for line in text.split("\n") for sentence in split_line(line)]
