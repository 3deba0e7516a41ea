"""Dev and test examples set aside from the training file, where a task has no files of theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from albert.tasks.examples import LARGEST, Split, connected
from albert.tasks.overlap import NGRAM, SIMILARITY, texts_of
from data import cleaning  # loads rensa when copies are sought: a training needs none
from data.errors import InputError

SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}
# multiples of it fall evenly into all parts of an interval (Weyl's equidistribution)
_GOLDEN = (5**0.5 - 1) / 2


def set_aside(split: Split, names: Sequence[str], *, by_label: bool) -> dict[str, Split]:
    """Part a split into train and the others of `names`, in proportion to their shares, also of each label.

    Examples of one group, and those whose texts are identical or nearly so, stay together; every label is one
    of train. The same examples are parted alike in whatever order they come.

    Raises InputError if too few are unlike each other.
    """
    labels = [tuple(sorted(one)) for one in split.label_sets] if by_label else [()] * len(split.examples)
    parts: dict[str, list[int]] = {name: [] for name in (*names, "train")}
    bounds = [*accumulate(SHARES[name] for name in parts)]
    known, seen = set[str](), 0
    for members in _clusters(split, labels):
        new = {label for at in members for label in labels[at]} - known
        place = (seen + len(members) / 2) * _GOLDEN % 1
        of_place = next(name for name, bound in zip(parts, bounds, strict=True) if place * bounds[-1] < bound)
        is_large = len(members) > LARGEST * len(split.examples)
        parts["train" if new or is_large else of_place] += members
        known |= new
        seen += len(members)
    if not all(parts.values()):
        raise InputError(
            f"{split.path} has too few examples or groups that are unlike each other to set any aside as "
            f"{' and '.join(names)}: give files for these"
        )
    examples = {name: tuple(split.examples[at] for at in sorted(part)) for name, part in parts.items()}
    train = replace(split, examples=examples.pop("train"))
    return {"train": train} | {
        name: replace(split, examples=part, skipped=()) for name, part in examples.items()
    }


def _clusters(split: Split, labels: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """The numbers of the examples that belong together, by their labels, and then as their digests fall."""
    texts, groups = texts_of(split), split.groups or range(len(split.examples))
    alike = cleaning.find_alike(texts, SIMILARITY, NGRAM).tolist()
    cluster_of = connected([*zip(texts, groups, strict=True)], alike).tolist()
    keys = [
        (of_one, hashlib.sha256(text.encode()).digest()) for of_one, text in zip(labels, texts, strict=True)
    ]
    clusters: dict[int, list[int]] = {}
    for at in sorted(range(len(keys)), key=keys.__getitem__):
        clusters.setdefault(cluster_of[at], []).append(at)
    return list(clusters.values())  # in the order of their first members
