"""Replace personal data, found by its form, with placeholders that name its kind.

Numbers with a check digit are replaced only if it is right: identity cards (GB 11643-1999, ISO 7064
MOD 11-2) and bank cards (ISO/IEC 7812-1, Luhn), so that article numbers and years stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import partial

PLACEHOLDERS = {
    "url": "〔网址〕",
    "email": "〔邮箱〕",
    "id_card": "〔证件号〕",
    "bank_card": "〔卡号〕",
    "phone": "〔电话〕",
}
# only characters of a URL (RFC 3986), so that Chinese written straight after it stays, as do marks at its end
# and a bracket that it does not open; atomic, as within a longer pattern it would be tried in 2^n ways
_url_part = r"[\w\-.~:/?#@!$&'*+,;=%]*"
URL = re.compile(
    rf"(?>(?:\b(?:https?|ftp)://|\bwww\.)(?:{_url_part}(?:[\w\-~/#@$&*+=%]|\({_url_part}\)))+)", re.I | re.A
)

_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_id_card(number: str) -> bool:
    """Whether the check character of an 18-character identity number is right (GB 11643-1999)."""
    total = sum(weight * int(digit) for weight, digit in zip(_WEIGHTS, number, strict=False))
    return "10X98765432"[total % 11] == number[17].upper()


def is_bank_card(number: str) -> bool:
    """Whether a card number's last digit is Luhn's (ISO/IEC 7812-1, annex B), without spaces and dashes.

    >>> is_bank_card("6222 0202 0001 2345 672")
    False
    """
    digits = [int(c) for c in number if c.isdigit()]
    doubled = [digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(d - 9 if d > 9 else d for d in doubled)) % 10 == 0


_BEGIN = r"(?<!\d)(?<!\d[.-])"  # not within a longer number
# in the order of the search: longer numbers first
_PATTERNS = {
    "url": URL,
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+", re.A),
    "id_card": re.compile(
        r"(?<![0-9A-Za-z])[1-9]\d{5}(?:19|20)\d\d(?:0[1-9]|1[0-2])\d{5}[\dXx](?![0-9A-Za-z])", re.A
    ),
    "bank_card": re.compile(_BEGIN + r"[3-6](?:[ -]?\d){14,18}(?!\d|[.-]\d)", re.A),
    "phone": re.compile(
        _BEGIN + r"(?:(?:\+?86[ -]?)?1[3-9]\d(?:[ -]?\d{4}){2}"  # mobile
        r"|\(?0(?:10|2\d|[3-9]\d\d)\)?[ -]?\d{7,8}(?:-\d{1,5})?"  # fixed, with its area code
        r"|[48]00(?:[ -]?\d{3}[ -]?\d{4}|-\d{4}-\d{3}))(?!\d|-\d)",  # 400 and 800 numbers
        re.A,
    ),
}
_IS_VALID = {"id_card": is_id_card, "bank_card": is_bank_card}


def scrub(text: str, kinds: Collection[str]) -> tuple[str, dict[str, int]]:
    """Replace personal data of some kinds in a text; return it and the number of replacements of each kind.

    >>> scrub("请打13800138000，或写信到 a@b.cn。", ["phone", "email"])
    ('请打〔电话〕，或写信到 〔邮箱〕。', {'email': 1, 'phone': 1})
    """
    counts = Counter[str]()

    def replaced(kind: str, match: re.Match[str]) -> str:
        if not _IS_VALID.get(kind, bool)(match[0]):
            return match[0]
        counts[kind] += 1
        return PLACEHOLDERS[kind]

    for kind, pattern in _PATTERNS.items():
        if kind in kinds:
            text = pattern.sub(partial(replaced, kind), text)
    return text, dict(counts)
