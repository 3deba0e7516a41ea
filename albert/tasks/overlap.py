"""Texts that two parts of a task have in common, which make scores of the later part too good.

Texts are compared by their letters, whatever the width, case, punctuation and script, as documents of a
corpus are. The texts of an example, such as a pair or a passage and its question, count as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from albert.tasks.examples import Split
from data import cleaning  # loads rensa when copies are sought: a training needs none

SIMILARITY = 0.8  # Jaccard's, from which texts are nearly identical
NGRAM = 2  # letters that are compared together: sentences are short, and one edit breaks as many n-grams
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Overlap:
    """The examples of a split whose texts are in an earlier split too."""

    split: str
    earlier: str
    examples: int  # of the split
    identical: int
    near: int  # nearly identical
    shown: tuple[tuple[str, str], ...]  # texts of both splits

    def describe(self) -> str:
        """
        >>> Overlap("test", "train", 3000, 3, 9, ()).describe()
        '12 of 3,000 test examples are in train too, 3 of them unchanged'
        """
        count = self.identical + self.near
        are = "is" if count == 1 else "are"
        return (
            f"{count:,} of {self.examples:,} {self.split} examples {are} in {self.earlier} too, "
            f"{self.identical:,} of them unchanged"
        )


def find_overlaps(splits: Mapping[str, Split]) -> tuple[Overlap, ...]:
    """What each split has in common with each earlier one; the splits are in order, train first."""
    texts = {name: texts_of(split) for name, split in splits.items()}
    found = []
    for earlier, name in combinations(texts, 2):
        pairs = [(texts[name][at], copy) for at, copy in _copies(texts[name], texts[earlier]).items()]
        identical = sum(a == b for a, b in pairs)
        shown = tuple(sorted(pairs, key=lambda pair: pair[0] == pair[1])[:_SHOWN])
        found.append(Overlap(name, earlier, len(texts[name]), identical, len(pairs) - identical, shown))
    return tuple(one for one in found if one.identical or one.near)


def without_copies(splits: Mapping[str, Split]) -> Split:
    """Train without the examples whose texts are in another split."""
    train, *others = (texts_of(split) for split in splits.values())
    copies = _copies(train, [text for texts in others for text in texts])
    examples = enumerate(splits["train"].examples)
    return replace(splits["train"], examples=tuple(one for at, one in examples if at not in copies))


def _copies(texts: Sequence[str], others: Sequence[str]) -> dict[int, str]:
    """The text of the others that each text repeats, by the text's number: the very same, if it is there."""
    numbers = zip(*cleaning.find_copies(texts, others, SIMILARITY, NGRAM), strict=True)
    known = set(others)
    near = {int(at): others[other] for at, other in numbers}
    return near | {at: text for at, text in enumerate(texts) if text in known}


def texts_of(split: Split) -> list[str]:
    """The texts of each example as one."""
    return ["\n".join(example.texts()) for example in split.examples]
