"""Personal data by its form, replaced by a placeholder that says what stood there.

Numbers that carry a check digit are only replaced where it holds: identity cards (GB 11643-1999, ISO 7064
MOD 11-2) and bank cards (ISO/IEC 7812-1, Luhn), so that article numbers and years stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

PLACEHOLDERS = {
    "url": "〔网址〕",
    "email": "〔邮箱〕",
    "id_card": "〔证件号〕",
    "bank_card": "〔卡号〕",
    "phone": "〔电话〕",
}
KINDS = tuple(PLACEHOLDERS)  # in the order they are looked for: the longer numbers first

_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_id_card(number: str) -> bool:
    """Whether an 18-character identity number's check character holds (GB 11643-1999)."""
    total = sum(weight * int(digit) for weight, digit in zip(_WEIGHTS, number, strict=False))
    return "10X98765432"[total % 11] == number[17].upper()


def is_bank_card(number: str) -> bool:
    """Whether a card number's last digit is Luhn's (ISO/IEC 7812-1, annex B); spaces and dashes aside.

    >>> is_bank_card("6222 0202 0001 2345 672")
    False
    """
    digits = [int(c) for c in number if c.isdigit()]
    doubled = [digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(d - 9 if d > 9 else d for d in doubled)) % 10 == 0


_PATTERNS: dict[str, tuple[re.Pattern[str], Callable[[str], bool]]] = {
    # only characters a URL may have (RFC 3986), so that Chinese written straight after it stays
    "url": (re.compile(r"(?:\b(?:https?|ftp)://|\bwww\.)[\w\-.~:/?#@!$&'()*+,;=%]+", re.I | re.A), bool),
    "email": (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+", re.A), bool),
    "id_card": (
        re.compile(
            r"(?<![0-9A-Za-z])[1-9]\d{5}(?:19|20)\d\d(?:0[1-9]|1[0-2])\d{5}[\dXx](?![0-9A-Za-z])", re.A
        ),
        is_id_card,
    ),
    "bank_card": (re.compile(r"(?<![\d.-])[3-6](?:[ -]?\d){14,18}(?![\d.-])", re.A), is_bank_card),
    "phone": (
        re.compile(
            r"(?<![\d.-])(?:(?:\+?86[ -]?)?1[3-9]\d(?:[ -]?\d{4}){2}"  # mobile
            r"|\(?0(?:10|2\d|[3-9]\d\d)\)?[ -]?\d{7,8}"  # fixed, with its area code
            r"|[48]00[ -]?\d{3}[ -]?\d{4})(?![\d-])",  # 400 and 800 numbers
            re.A,
        ),
        bool,
    ),
}


def scrub(text: str, kinds: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The text with placeholders, and how many of each kind were put in.

    >>> scrub("请打13800138000，或写信到 a@b.cn。", ["phone", "email"])
    ('请打〔电话〕，或写信到 〔邮箱〕。', {'email': 1, 'phone': 1})
    """
    counts: dict[str, int] = {}
    for kind in (kind for kind in KINDS if kind in kinds):
        pattern, holds = _PATTERNS[kind]

        def replaced(match: re.Match[str], kind: str = kind, holds: Callable[[str], bool] = holds) -> str:
            if not holds(match[0]):
                return match[0]
            counts[kind] = counts.get(kind, 0) + 1
            return PLACEHOLDERS[kind]

        text = pattern.sub(replaced, text)
    return text, counts
