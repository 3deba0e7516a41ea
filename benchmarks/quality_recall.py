"""How many good documents the default filters keep, and how much junk they drop, of a sample that was read.

quality_labels.tsv: the digest of a document's place, its label, how many documents it stands for, and why it
was drawn: at random, or for an extreme measure. Each was read without knowing its measures. Junk is text of
hardly a clause, in another language, of names or links alone, advertising, or one phrase again and again.
The rules were tuned on one half. Run: python -m benchmarks.quality_recall CORPORA
"""

from __future__ import annotations

import argparse
import csv
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.support.results import write_result
from data.cleaning import QualityRules, clean_text, drop_reasons, measure, split_sentences
from data.sources import RawDocument, find_files, read_documents

LABELS = Path(__file__).parent / "quality_labels.tsv"
SOURCES = (
    "general/raw",
    "general-large/open-02.jsonl.gz",
    "general-large/research-02.jsonl.gz",
    "domain-reviews/reviews_unlabelled.jsonl.gz",
)


class Judged(NamedTuple):
    is_good: bool
    is_kept: bool
    is_held_out: bool  # of the half that the rules were not tuned on
    weight: float
    is_random: bool


def judge(corpora: Path) -> list[Judged]:
    with LABELS.open(encoding="utf-8") as file:
        labels = {row["digest"]: row for row in csv.DictReader(file, delimiter="\t")}
    judged = []
    for uri in (uri for source in SOURCES for uri in find_files(str(corpora / source))):
        for document in read_documents(uri):
            place = document.source_uri.removeprefix(f"{corpora}/")
            digest = sha256(place.encode()).hexdigest()[:12]
            if not isinstance(document, RawDocument) or digest not in labels:
                continue
            text, row = clean_text(document.text), labels[digest]
            (reason,) = drop_reasons([text], measure([split_sentences(text)]), QualityRules())
            is_held_out = int(digest, 16) % 2 == 0
            is_random = row["stratum"].startswith("random")
            judged.append(
                Judged(row["label"] == "good", reason is None, is_held_out, float(row["weight"]), is_random)
            )
    return judged


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
        "held out": [one for one in judged if one.is_held_out],
        "tuned on": [one for one in judged if not one.is_held_out],
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
    write_result("quality_recall", "\n".join(lines), {"rows": rows})


if __name__ == "__main__":
    main()
