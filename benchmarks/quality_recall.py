"""How many good documents the default filters keep, and how much junk they drop, of a sample that was read.

quality_labels.tsv: the digest of a document's place, its label, how many documents it stands for, and why it
was drawn: at random, or for an extreme measure. Each was read without knowing its measures. Junk is text of
hardly a clause, in another language, of names or links alone, advertising, or one phrase again and again.
The rules were tuned on one half, and the misses of the other half seen. A later sample, of which nothing was
seen, was read and labelled before the filters judged it.

The second table is what the optional rules drop, with the perplexity of a document among those of its source.
Run: python -m benchmarks.quality_recall CORPORA
"""

from __future__ import annotations

import csv
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.support.results import command, markdown, write_result
from data.cleaning import (
    CharacterPairs,
    QualityRules,
    clean_text,
    drop_reasons,
    languages_of,
    measure,
    split_sentences,
)
from data.sources import RawDocument, document_id, find_files, read_documents

LABELS = Path(__file__).parent / "quality_labels.tsv"
SOURCES = (
    "general/raw",
    *(f"general-large/{part}.jsonl.gz" for part in ("open-01", "open-02", "research-01", "research-02")),
    "domain-reviews/reviews_unlabelled.jsonl.gz",
)

LANGUAGES = (("zh",), ("zh", "wuu", "yue"))
BOUNDS = (500, 1000, 2000, 5000)
BATCH = 1000  # documents


class Judged(NamedTuple):
    is_good: bool
    is_kept: bool
    is_later: bool
    is_held_out: bool  # of the half that the rules were not tuned on
    is_random: bool
    perplexity: float
    language: str | None


def judge(corpora: Path) -> list[Judged]:
    with LABELS.open(encoding="utf-8") as file:
        labels = {row["digest"]: row for row in csv.DictReader(file, delimiter="\t")}
    judged = []
    for source in SOURCES:
        chosen: dict[str, str] = {}
        texts: list[str] = []
        for document in (d for uri in find_files(str(corpora / source)) for d in read_documents(uri)):
            place = document.source_uri.removeprefix(f"{corpora}/")
            digest = sha256(place.encode()).hexdigest()[:12]
            if isinstance(document, RawDocument):
                texts.append(clean_text(document.text))
                if digest in labels:
                    chosen[digest] = texts[-1]
        pairs, doc_ids = CharacterPairs(), list(map(document_id, texts))
        for begin in range(0, len(texts), BATCH):
            pairs.add(doc_ids[begin : begin + BATCH], texts[begin : begin + BATCH])
        for digest, text in chosen.items():
            row = labels[digest]
            (reason,) = drop_reasons([text], measure([split_sentences(text)]), QualityRules())
            judged.append(
                Judged(
                    is_good=row["label"] == "good",
                    is_kept=reason is None,
                    is_later=row["stratum"].startswith("later: "),
                    is_held_out=int(digest, 16) % 2 == 0,
                    is_random="random" in row["stratum"],
                    perplexity=float(pairs.perplexities([document_id(text)], [text])[0]),
                    language=languages_of([text])[0],
                )
            )
    return judged


def dropped_by(judged: list[Judged]) -> dict[str, list[int]]:
    """By optional rule: good documents that it drops, junk, and junk that the default filters keep."""
    dropped = {f"languages: {', '.join(k)}": [d for d in judged if d.language not in k] for k in LANGUAGES}
    dropped |= {f"max_perplexity: {bound:,}": [d for d in judged if d.perplexity > bound] for bound in BOUNDS}
    junk = {name: [d for d in hit if not d.is_good] for name, hit in dropped.items()}
    return {
        name: [len(hit) - len(junk[name]), len(junk[name]), sum(d.is_kept for d in junk[name])]
        for name, hit in dropped.items()
    }


def main(corpora: Path) -> None:
    judged = judge(corpora)
    parts = {
        "later": [one for one in judged if one.is_later],
        "not tuned on": [one for one in judged if one.is_held_out and not one.is_later],
        "tuned on": [one for one in judged if not one.is_held_out and not one.is_later],
        "random": [one for one in judged if one.is_random],
    }
    rows = []
    for name, part in parts.items():
        good, junk = ([one for one in part if one.is_good == is_good] for is_good in (True, False))
        kept, dropped = sum(one.is_kept for one in good), sum(not one.is_kept for one in junk)
        rows.append((name, len(good), kept, len(junk), dropped))
    by_rule = dropped_by(judged)
    tables = [
        markdown(["documents", "good", "kept", "junk", "dropped"], rows),
        markdown(
            ["rule", "good dropped", "junk dropped", "of that, kept by the filters"],
            [(name, *counts) for name, counts in by_rule.items()],
        ),
    ]
    write_result("quality_recall", "\n\n".join(tables), {"rows": rows, "optional_rules": by_rule})


if __name__ == "__main__":
    command(main)
