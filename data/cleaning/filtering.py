"""Filter documents that teach a Chinese model little: too short, hardly Chinese, or repetitive.

Thresholds are those of filters for English web text if they carry over, and looser where Chinese differs:
Gopher (Rae et al. 2021, table A1) and C4 (Raffel et al. 2020, section 2.2). Gopher's word lengths and stop
words do not carry over: they would drop nearly all Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.cleaning.measures import Measures
from data.cleaning.sentences import CLOSERS, ENDERS
from data.cleaning.settings import QualityRules
from data.errors import InputError

# with fewer of them a share means nothing; of two sentences no more than half can be repeated
FEW_SENTENCES, FEW_LINES, FEW_NGRAMS = 3, 10, 20
_ended = re.compile(rf"[{ENDERS}．：:][{re.escape(CLOSERS)}]*$")


def read_blocklist(path: Path) -> list[str]:
    """Read the words of a blocklist. Raises InputError if it cannot be read or is empty."""
    try:
        words = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"blocklist {path} cannot be read: {error}") from None
    if not words:
        raise InputError(f"blocklist {path} holds no word")
    return words


@lru_cache(maxsize=2)
def _blocked(path: str) -> re.Pattern[str]:
    words = sorted(read_blocklist(Path(path)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words)), re.I)


def _unended_share(text: str) -> float:
    lines = text.split("\n")
    return sum(_ended.search(line) is None for line in lines) / len(lines) if len(lines) >= FEW_LINES else 0.0


def drop_reasons(texts: Sequence[str], measures: Measures, rules: QualityRules) -> list[str | None]:
    """Give each document the reason to drop it, or None; `texts` are cleaned."""
    sentences = np.diff(measures.first_sentence)
    several, enough = sentences >= FEW_SENTENCES, measures.ngrams >= FEW_NGRAMS
    checks = [
        ("empty", measures.characters == 0),
        ("too_short", measures.letters_and_digits < rules.min_characters),
        ("too_little_chinese", measures.han_share < rules.min_han_share),
        ("repeated_sentences", several & (measures.repeated_sentences > rules.max_repeated_sentences)),
        ("repeated_ngrams", enough & (measures.repeated_ngrams > rules.max_repeated_ngrams)),
    ]
    if rules.max_unended_lines < 1:
        shares = np.array([_unended_share(text) for text in texts])
        checks.append(("unended_lines", shares > rules.max_unended_lines))
    if rules.blocklist:
        pattern = _blocked(rules.blocklist)
        hits = np.array([len(pattern.findall(text)) for text in texts])
        checks.append(("blocked_words", hits > rules.max_blocked))
    reasons: list[str | None] = [None] * len(texts)
    for reason, failed in reversed(checks):  # the first failed check is the reason
        for number in np.flatnonzero(failed).tolist():
            reasons[number] = reason
    return reasons
