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

SHARES = {"dev": 0.1, "test": 0.2}
# multiples of it fall evenly into all parts of an interval (Weyl's equidistribution)
_GOLDEN = (5**0.5 - 1) / 2


def set_aside(split: Split, names: Sequence[str], *, by_label: bool) -> dict[str, Split]:
    """Part a split into train and the others of `names`, which get about their shares, also of each label.

    Examples of one group, and those whose texts are identical or nearly so, stay together; every label is one
    of train. The same examples are parted alike in whatever order they come.

    Raises InputError if too few are unlike each other.
    """
    labels = [tuple(sorted(one)) for one in split.label_sets] if by_label else [()] * len(split.examples)
    parts: dict[str, list[int]] = {name: [] for name in ("train", *names)}
    bounds = dict(zip(names, accumulate(SHARES[name] for name in names), strict=True))
    known, seen = set[str](), 0
    for members in _clusters(split, labels):
        new = {label for at in members for label in labels[at]} - known
        place = (seen + len(members) / 2) * _GOLDEN % 1
        is_large = len(members) > LARGEST * len(split.examples)
        others = {} if new or is_large else bounds
        parts[next((name for name, bound in others.items() if place < bound), "train")] += members
        known |= new
        seen += len(members)
    if not all(parts.values()):
        raise InputError(
            f"{split.path} has too few examples or groups that are unlike each other to set any aside as "
            f"{' and '.join(names)}: give files for these"
        )
    made = {
        name: replace(split, examples=tuple(split.examples[at] for at in sorted(part)), skipped=())
        for name, part in parts.items()
    }
    return made | {"train": replace(made["train"], skipped=split.skipped)}


def _clusters(split: Split, labels: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """The numbers of the examples that belong together, by their labels, and then as their digests fall."""
    texts, groups = texts_of(split), split.groups or range(len(split.examples))
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    order = sorted(range(len(texts)), key=lambda at: (labels[at], digests[at]))
    alike = cleaning.find_alike([texts[at] for at in order], SIMILARITY, NGRAM).tolist()
    cluster_of = connected([(texts[at], groups[at]) for at in order], alike).tolist()
    clusters: dict[int, list[int]] = {}
    for number, at in zip(cluster_of, order, strict=True):
        clusters.setdefault(number, []).append(at)
    return list(clusters.values())  # in the order of their first members
