import random

import duckdb
import numpy as np
import pytest

from data.cleaning import find_near_duplicates, measure, sketch
from data.cleaning.near_duplicates import similarity


def text(count, seed):
    rng = random.Random(seed)
    return "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(count))


def changed(original, share, seed=1):
    """The text with a share of its characters replaced."""
    rng = random.Random(seed)
    return "".join(chr(rng.randrange(0x4E00, 0x9F00)) if rng.random() < share else c for c in original)


def jaccard(a, b, n=5):
    first, second = ({t[i : i + n] for i in range(len(t) - n + 1)} for t in (a, b))
    return len(first & second) / len(first | second)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03, 0.1, 0.5])
def test_similarity_estimates_jaccard_similarity(share):
    pairs = [(text(800, seed), changed(text(800, seed), share, seed + 1)) for seed in range(40)]
    made = sketch(measure([[t] for pair in pairs for t in pair]), 5)
    estimates = similarity(made.signatures[::2], made.signatures[1::2])
    exact = np.array([jaccard(a, b) for a, b in pairs])
    # the standard error of 126 minima is at most 0.045 for one pair
    assert abs((estimates - exact).mean()) < 3 * 0.045 / 40**0.5


def near(texts, threshold=0.8):
    made = sketch(measure([[t] for t in texts]), 5)
    with duckdb.connect() as db:
        db.execute("create table sketched (doc_id varchar, rank bigint, bands uinteger[], signature blob)")
        rows = [(str(i), i, made.bands[i].tolist(), made.signatures[i].tobytes()) for i in range(len(texts))]
        db.executemany("insert into sketched values (?, ?, ?, ?)", rows)
        find_near_duplicates(db, threshold)
        return dict(db.execute("select doc_id, duplicate_of from near order by doc_id").fetchall())


def test_later_near_copies_are_found_and_others_are_not():
    first, second = text(600, 1), text(600, 2)
    texts = [first, second, changed(first, 0.01), "，".join(second), changed(first, 0.4), text(30, 3)]
    assert near(texts) == {"2": "0", "3": "1"}


def test_nearly_all_copies_above_the_threshold_are_found():
    texts = [t for seed in range(100) for t in (text(400, seed), changed(text(400, seed), 0.015, seed))]
    similar = [jaccard(texts[i], texts[i + 1]) > 0.85 for i in range(0, 200, 2)]
    found = near(texts, 0.75)
    assert sum(similar) > 60
    assert sum(str(2 * i + 1) in found for i, s in enumerate(similar) if s) >= 0.97 * sum(similar)
    assert all(int(doc) % 2 == 1 and int(of) == int(doc) - 1 for doc, of in found.items())


def test_case_punctuation_and_spaces_do_not_count():
    plain = "AlbertModel" + text(40, 5)
    assert near([plain, "。 ".join(plain.upper())]) == {"1": "0"}
