"""How many good documents the default filters keep, and how much junk they drop, of a sample that was read.

quality_labels.tsv: the digest of a document's place, its label, how many documents it stands for, and why it
was drawn: at random, or for an extreme measure. Each was read without knowing its measures. Junk is text of
hardly a clause, in another language, of names or links alone, advertising, or one phrase again and again.
The rules were tuned on one half, and the misses of the other half seen. A later sample, of which nothing was
seen, was read and labelled before the filters judged it.

The second table is what a perplexity rule would add: of the junk that the filters keep, what the perplexity
of a document under its own source's character trigrams finds at the cost of 1% and 3% of the good documents.
Run: python -m benchmarks.quality_recall CORPORA
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from math import log2
from pathlib import Path
from typing import NamedTuple

from benchmarks.support.results import write_result
from data.cleaning import QualityRules, clean_text, drop_reasons, measure, split_sentences
from data.sources import RawDocument, find_files, read_documents

LABELS = Path(__file__).parent / "quality_labels.tsv"
SOURCES = (
    "general/raw",
    *(f"general-large/{part}.jsonl.gz" for part in ("open-01", "open-02", "research-01", "research-02")),
    "domain-reviews/reviews_unlabelled.jsonl.gz",
)


EVERY, MOST = 3, 2000  # documents, and characters of one, that a source's trigrams are counted in


class Judged(NamedTuple):
    is_good: bool
    is_kept: bool
    is_later: bool
    is_held_out: bool  # of the half that the rules were not tuned on
    weight: float
    is_random: bool
    loss: float  # bits a character
    source: str


def judge(corpora: Path) -> list[Judged]:
    with LABELS.open(encoding="utf-8") as file:
        labels = {row["digest"]: row for row in csv.DictReader(file, delimiter="\t")}
    judged = []
    for source in SOURCES:
        chosen, model = [], Trigrams()
        for number, document in enumerate(
            d for uri in find_files(str(corpora / source)) for d in read_documents(uri)
        ):
            place = document.source_uri.removeprefix(f"{corpora}/")
            digest = sha256(place.encode()).hexdigest()[:12]
            if not isinstance(document, RawDocument):
                continue
            if digest in labels:
                chosen.append((digest, clean_text(document.text)))
            elif number % EVERY == 0 or source.startswith("general/"):
                model.count(clean_text(document.text))
        for digest, text in chosen:
            row = labels[digest]
            (reason,) = drop_reasons([text], measure([split_sentences(text)]), QualityRules())
            is_held_out = int(digest, 16) % 2 == 0
            is_later, stratum = row["stratum"].startswith("later: "), row["stratum"].removeprefix("later: ")
            is_good, weight, is_random = row["label"] == "good", float(row["weight"]), "random" in stratum
            loss = model.loss(text)
            judged.append(
                Judged(is_good, reason is None, is_later, is_held_out, weight, is_random, loss, source)
            )
    return judged


class Trigrams:
    """Character trigrams, interpolated with bigrams and single characters (Witten and Bell 1991)."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()  # a character after up to two others
        self.followed: Counter[str] = Counter()  # up to two characters
        self.kinds: Counter[str] = Counter()  # of characters after them

    def count(self, text: str) -> None:
        for before, character in _contexts(text):
            self.followed[before] += 1
            self.seen[before + character] += 1
            self.kinds[before] += self.seen[before + character] == 1

    def loss(self, text: str) -> float:
        """The mean of -log2 of a character's probability."""
        total, share = 0.0, 1.0
        for before, character in _contexts(text):
            share = share if before else 1 / 0x110000
            kinds, followed = self.kinds[before], self.followed[before]
            if kinds:
                share = (self.seen[before + character] + kinds * share) / (followed + kinds)
            total -= log2(share) if len(before) == 2 else 0.0
        return total / max(len(text[:MOST]), 1)


def _contexts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each character after none, one and two others."""
    padded = f"\n\n{text[:MOST]}"
    yield from ((padded[at - size : at], padded[at]) for at in range(2, len(padded)) for size in (0, 1, 2))


def found_by_perplexity(judged: list[Judged]) -> list[tuple[str, float, int, int]]:
    """By end and share of the good documents that a bound may cost: the junk found, and all there is."""
    kept = [one for one in judged if one.is_kept]
    found = []
    for end, sign in (("high", 1.0), ("low", -1.0)):
        for share_lost in (0.01, 0.03):
            hits = 0
            for source in SOURCES:
                good = sorted(sign * one.loss for one in kept if one.is_good and one.source == source)
                if good:
                    bound = good[len(good) - 1 - int(share_lost * len(good))]
                    hits += sum(
                        sign * one.loss > bound for one in kept if not one.is_good and one.source == source
                    )
            found.append((end, share_lost, hits, sum(not one.is_good for one in kept)))
    return found


def share(judged: list[Judged], is_good: bool, *, weighted: bool = False) -> float:
    """Share of the good documents that are kept, or of the junk that is dropped."""
    weights = [
        (one.weight if weighted else 1.0, one.is_kept == is_good) for one in judged if one.is_good == is_good
    ]
    return sum(weight for weight, right in weights if right) / max(sum(weight for weight, _ in weights), 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", type=Path)
    judged = judge(parser.parse_args().corpora)
    parts = {
        "later": [one for one in judged if one.is_later],
        "not tuned on": [one for one in judged if one.is_held_out and not one.is_later],
        "tuned on": [one for one in judged if not one.is_held_out and not one.is_later],
        "random": [one for one in judged if one.is_random],
    }
    rows = []
    lines = ["| documents | good | kept | weighted | junk | dropped | of those dropped, junk |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for name, part in parts.items():
        good, dropped = sum(one.is_good for one in part), [one for one in part if not one.is_kept]
        kept, weighted, found = share(part, True), share(part, True, weighted=True), share(part, False)
        precision = sum(not one.is_good for one in dropped) / max(len(dropped), 1)
        rows.append((name, good, kept, weighted, len(part) - good, found, precision))
        lines.append(
            f"| {name} | {good} | {100 * kept:.1f}% | {100 * weighted:.1f}% | {len(part) - good} "
            f"| {100 * found:.1f}% | {100 * precision:.1f}% |"
        )
    added = found_by_perplexity(judged)
    lines += ["", "| perplexity too | good lost | junk found of what the filters keep |", "|---|---:|---:|"]
    lines += [f"| {end} | {share_lost:.0%} | {hits} of {junk} |" for end, share_lost, hits, junk in added]
    write_result("quality_recall", "\n".join(lines), {"rows": rows, "perplexity": added})


if __name__ == "__main__":
    main()
