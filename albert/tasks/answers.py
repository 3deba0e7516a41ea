"""How the official scripts compare a predicted answer with the gold ones: exact match and F1.

SQuAD (Rajpurkar et al. 2016, 2018): lower case, no punctuation, no articles; F1 of the words in common.
If nothing is left of an answer, its F1 is 0 in 1.1's script; 2.0's script takes it for no answer.
CMRC 2018 (Cui et al. 2019): lower case, no punctuation; Chinese by characters, runs of other letters by
words; F1 of the longest common run. The best gold answer counts. A question without an answer is right if
nothing is predicted.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

# the marks of CMRC's script
_CMRC_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# NLTK's English tokenizer, which the script uses: runs without spaces, brackets, quotes, dashes and marks; a
# comma or colon before a digit belongs to a run, and so does a full stop that does not end the text
_MARKS = r"""][(){}<>;@#$%&?!"«»‘„\u2012-\u2015"""
_LATIN = re.compile(
    rf"""\.{{2,}}|[{_MARKS}]|[,:](?!\d)|\.(?=[])}}>"'\s]*$)|"""
    rf"""(?:[^{_MARKS}\s.,:]|[,:](?=\d)|\.(?!\.|[])}}>"'\s]*$))+"""
)
# splits men's, boys' and don't
_CLITIC = re.compile(r"(.*[^'])('(?:s|m|d|ll|re|ve)?|n't)")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(predicted: str, gold: Sequence[str], style: str) -> tuple[float, float]:
    """(exact match, F1) of an answer, both in [0, 1]; an empty answer means that there is none.

    >>> answer_scores("the Great Wall", ["Great Wall"], "squad")
    (1.0, 1.0)
    >>> answer_scores("北京市", ["北京"], "cmrc")
    (0.0, 0.8)
    """
    if style == "squad2":
        gold = [one for one in gold if _squad_text(one)] or [""]
    if not gold:
        right = float(not predicted)
        return right, right
    normalize, f1 = _STYLES[style]
    exact = max(float(normalize(predicted) == normalize(one)) for one in gold)
    return exact, max(f1(predicted, one) for one in gold)


def _squad_text(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _squad_f1(predicted: str, gold: str) -> float:
    ours, theirs = _squad_text(predicted).split(), _squad_text(gold).split()
    return _f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))


def _squad2_f1(predicted: str, gold: str) -> float:
    ours, theirs = _squad_text(predicted), _squad_text(gold)
    return _squad_f1(predicted, gold) if ours and theirs else float(ours == theirs)


def _cmrc_text(text: str) -> str:
    return "".join(c for c in text.lower().strip() if c not in _CMRC_MARKS)


def _cmrc_units(text: str) -> list[str]:
    """Single Chinese characters, and the words between them."""
    parts = re.split("([\u4e00-\u9fa5])", _cmrc_text(text))
    return [
        unit for number, part in enumerate(parts) for unit in ([part] if number % 2 else _latin_words(part))
    ]


def _latin_words(text: str) -> Iterator[str]:
    for run in _LATIN.findall(text):
        parted = _CLITIC.fullmatch(run)
        yield from parted.groups() if parted else (run,)


def _cmrc_f1(predicted: str, gold: str) -> float:
    ours, theirs = _cmrc_units(predicted), _cmrc_units(gold)
    common = SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
    return _f1(common.size, len(ours), len(theirs))


def _f1(common: int, predicted: int, gold: int) -> float:
    return 2 * common / (predicted + gold) if common else 0.0


_STYLES = {
    "squad": (_squad_text, _squad_f1),  # 1.1
    "squad2": (_squad_text, _squad2_f1),
    "cmrc": (_cmrc_text, _cmrc_f1),
}
