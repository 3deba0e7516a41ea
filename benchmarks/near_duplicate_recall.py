"""How many planted near copies a refresh finds of those that a comparison of all pairs finds.

A copy is a document with random characters replaced, left out or put in. Run:
python -m benchmarks.near_duplicate_recall [TEXT] [--documents N]
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np

from benchmarks.support.corpora import SAMPLES
from benchmarks.support.results import command, markdown, write_result
from data.cleaning import clean_text, find_candidates, find_near_duplicates, letters_of, measure, sketch
from data.sources import RawDocument, read_documents

THRESHOLDS = (0.75, 0.8, 0.85, 0.9, 0.95)
NGRAM = 5


def edited(text: str, share: float, rng: random.Random) -> str:
    """The text with a share of its characters replaced, left out or doubled."""
    edits = ("", "茶", "{0}{0}")
    return "".join(rng.choice(edits).format(c) if c.isalnum() and rng.random() < share else c for c in text)


def all_pairs(texts: list[str]) -> list[tuple[int, int, float]]:
    """Every pair of texts with a Jaccard similarity of at least the least threshold, the later one first."""
    hashes, first = letters_of(texts).ngrams(NGRAM)
    sets = [np.unique(hashes[a:b]) for a, b in zip(first, first[1:], strict=False)]
    found = []
    for later, grams in enumerate(sets):
        for earlier in range(later):
            fewer, more = sorted((len(grams), len(sets[earlier])))
            if fewer >= THRESHOLDS[0] * more:
                shared = len(np.intersect1d(grams, sets[earlier], assume_unique=True))
                similarity = shared / (fewer + more - shared)
                if similarity >= THRESHOLDS[0]:
                    found.append((later, earlier, similarity))
    return found


def main(text: Path = SAMPLES / "tea.jsonl", *, documents: int = 1000) -> None:
    rng = random.Random(0)
    read = (clean_text(d.text) for d in read_documents(str(text)) if isinstance(d, RawDocument))
    originals = [one for one in islice(read, documents) if len(one) >= 100]
    # with 3.5% of the characters edited, 84% of the n-grams are left: a similarity of about 0.72
    texts = originals + [edited(one, rng.uniform(0, 0.035), rng) for one in originals]
    pairs, rows = all_pairs(texts), []
    with duckdb.connect() as db:
        bands = sketch(measure([one.split("\n") for one in texts]).letters, NGRAM)
        db.execute("create table sketched (rank bigint, is_known bool, bands uinteger[])")
        db.executemany("insert into sketched values (?, false, ?)", list(enumerate(bands.tolist())))
        db.execute("create table texts (rank bigint, text varchar)")
        db.executemany("insert into texts values (?, ?)", list(enumerate(texts)))
        find_candidates(db)
        for threshold in THRESHOLDS:
            find_near_duplicates(db, threshold, NGRAM)
            found = {later for (later,) in db.execute("select later from near").fetchall()}
            dropped: set[int] = set()
            for later, earlier, similarity in pairs:
                if similarity >= threshold and earlier not in dropped:
                    dropped.add(later)
            rows.append((threshold, len(dropped), len(found & dropped), len(found - dropped)))
    result = {"text": text.name, "documents": len(texts), "rows": rows}
    table = markdown(["threshold", "all pairs", "found", "found alone"], rows)
    write_result("near_duplicate_recall", table, result)


if __name__ == "__main__":
    command(main)
