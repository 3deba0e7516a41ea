"""Filter documents that teach a Chinese model little: too short, hardly Chinese, or repetitive.

Thresholds are those of filters for English web text if they carry over, and looser where Chinese differs:
Gopher (Rae et al. 2021, table A1) and C4 (Raffel et al. 2020, section 2.2). Gopher's word lengths and stop
words do not carry over: they would drop nearly all Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.cleaning.measures import Measures
from data.cleaning.normalise import normalize, to_simplified
from data.cleaning.sentences import CLOSERS, ENDERS
from data.cleaning.settings import CleaningRules, QualityRules
from data.errors import InputError
from data.files import read_lines, remembered

# with fewer of them a share means nothing; of two sentences no more than half can be repeated
FEW_SENTENCES, FEW_LINES = 3, 10
_ended = re.compile(rf"[{ENDERS}．：:][{re.escape(CLOSERS)}]*$")

# calls to get in touch, to follow or to buy; each holds one of the words below
_address = (
    r"(?:(?:微信|公众号|QQ|qq)[群号码]{0,2}[是为：:「“ ]{0,3}[A-Za-z0-9][\w-]{4,}|〔(?:电话|邮箱|网址)〕"
    r"|(?<!\d)(?:1[3-9]\d{9}|[48]00-?\d{3}-?\d{4}|0\d{2,3}-\d{7,8})(?!\d))"
)
_within = rf"[^{ENDERS}\n]"  # a sentence
_advertising = re.compile(
    rf"(?:联系|咨询|预约|转让|(?<!外)卖).{{0,30}}?{_address}"
    rf"|(?:关注|加我|加入|扫码){_within}{{0,12}}?(?:微信|公众号)|知识星球"
    rf"|扫码{_within}{{0,8}}?(?:关注|加|[入进]群|领取|咨询|购买|报名)"
    r"|(?:立即|欢迎)(?:致电|来电|[抢订选]购|购买|报名|领取|咨询)"
)
_ADVERTISED = ("微信", "公众号", "知识星球", "扫码", "联系", "咨询", "预约", "转让", "卖", "立即", "欢迎")


def read_blocklist(path: Path) -> list[str]:
    """Read the words of a blocklist. Raises InputError if it cannot be read or is empty."""
    words = read_lines(path, "blocklist")
    if not words:
        raise InputError(f"blocklist {path} holds no word")
    return words


@remembered
def _blocked(path: str, cleaning: CleaningRules) -> re.Pattern[str]:
    """Match the words of a blocklist in cleaned texts."""
    words = "\n".join(read_blocklist(Path(path)))
    words = normalize(words) if cleaning.fold_width else words
    words = to_simplified(words) if cleaning.simplify else words
    longest_first = sorted(words.split("\n"), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)), re.I)


def _unended_share(text: str) -> float:
    lines = text.split("\n")
    return sum(_ended.search(line) is None for line in lines) / len(lines) if len(lines) >= FEW_LINES else 0.0


def _advertise(texts: Sequence[str], most: float) -> np.ndarray:
    """Whether each text has more than `most` calls to act per 100 characters.

    The slow pattern is tried only on texts with enough of its words.
    """
    return np.array(
        [
            sum(map(text.count, _ADVERTISED)) * 100 > most * len(text)
            and len(_advertising.findall(text)) * 100 > most * len(text)
            for text in texts
        ]
    )


def drop_reasons(
    texts: Sequence[str],
    measures: Measures,
    rules: QualityRules,
    languages: Sequence[str | None] = (),
    cleaning: CleaningRules = CleaningRules(),
) -> list[str | None]:
    """Give each document the reason to drop it, or None; `texts` went through `cleaning`.

    `languages`: of each text, if the rules name some.
    """
    several = np.diff(measures.first_sentence) >= FEW_SENTENCES
    checks = {
        "empty": measures.characters == 0,
        "too_short": measures.letters_and_digits < rules.min_characters,
        "too_little_chinese": measures.han_share < rules.min_han_share,
        "repeated_sentences": several & (measures.repeated_sentences > rules.max_repeated_sentences),
        "repeated_ngrams": measures.repeated_ngrams > rules.max_repeated_ngrams,
        "advertising": _advertise(texts, rules.max_advertising),
    }
    if rules.max_unended_lines < 1:
        checks["unended_lines"] = np.array(list(map(_unended_share, texts))) > rules.max_unended_lines
    if rules.blocklist:
        pattern = _blocked(rules.blocklist, cleaning)
        checks["blocked_words"] = np.array([len(pattern.findall(text)) > rules.max_blocked for text in texts])
    if rules.languages:
        checks["language"] = np.array([language not in rules.languages for language in languages])
    reasons = np.select(list(checks.values()), list(checks), "")  # of several, the first
    return [reason or None for reason in reasons.tolist()]
