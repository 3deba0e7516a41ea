import random
import tracemalloc
from itertools import combinations

import duckdb
import pyarrow as pa
import pytest

from data.cleaning import find_candidates, find_copies, find_near_duplicates, measure, sketch
from tests.data.helpers import random_text


def changed(original, share, seed=1):
    rng = random.Random(seed)
    return "".join(chr(rng.randrange(0x4E00, 0x9F00)) if rng.random() < share else c for c in original)


def grams(text, n=5):
    return {text[i : i + n] for i in range(len(text) - n + 1)}


def jaccard(first, second):
    return len(first & second) / len(first | second)


def near(texts, threshold=0.8, known=()):
    bands = sketch(measure([[t] for t in texts]).letters, 5)
    with duckdb.connect() as db:
        db.execute("create table sketched (rank bigint, is_known bool, bands uinteger[])")
        db.execute("create table texts (rank bigint, text varchar)")
        rows = [(i, i in known, bands[i].tolist()) for i in range(len(texts))]
        db.executemany("insert into sketched values (?, ?, ?)", rows)
        db.executemany("insert into texts values (?, ?)", list(enumerate(texts)))
        find_candidates(db)
        find_near_duplicates(db, threshold, 5)
        return dict(db.execute("from near order by later").fetchall())


@pytest.mark.parametrize("threshold", [0.75, 0.85, 0.95])
def test_copies_are_found_as_by_brute_force(threshold):
    """Of an original and two copies, some changed more than the threshold allows."""
    texts = []
    for seed in range(60):
        original = random_text(300, seed)
        share = (1 - threshold) / 10 * (0.4 + seed / 50)
        texts += [original, changed(original, share, seed), changed(original, share, seed + 100)]
    wanted, sets = {}, [grams(one) for one in texts]
    for earlier, later in sorted(combinations(range(len(texts)), 2), key=lambda pair: pair[::-1]):
        is_new = later not in wanted and earlier not in wanted
        if is_new and jaccard(sets[earlier], sets[later]) >= threshold:
            wanted[later] = earlier
    found = near(texts, threshold)
    assert 40 < len(wanted) < 110
    assert len(found.keys() & wanted.keys()) >= 0.98 * len(wanted)
    assert all(jaccard(sets[earlier], sets[later]) >= threshold for later, earlier in found.items())
    assert not found.keys() & set(found.values())


@pytest.mark.parametrize("threshold", [0.75, 0.9])
def test_copies_between_two_sets_are_found_as_by_brute_force(threshold):
    """Short texts by pairs of letters, the most alike of several."""
    others = [random_text(25, seed) for seed in range(80)]
    texts = [changed(one, 0.04, seed) for seed, one in enumerate(others[:60])] + ["", "茶"]
    sets = [grams(one, 2) for one in others]
    alike = [[jaccard(grams(one, 2), other) for other in sets] for one in texts[:60]]
    wanted = {at for at, row in enumerate(alike) if max(row) >= threshold}
    found, copied = find_copies(texts, [*others, ""], threshold, 2)
    assert 10 < len(wanted) < 60 and set(found) <= wanted and len(found) >= 0.97 * len(wanted)
    assert all(alike[a][b] == max(alike[a]) for a, b in zip(found, copied, strict=True))


def test_documents_known_to_differ_are_not_compared_again():
    first, second = random_text(300, 1), random_text(300, 2)
    texts = [first, second, changed(first, 0.01), changed(second, 0.01)]
    assert near(texts) == {2: 0, 3: 1} and near(texts, known={0, 1, 2}) == {3: 1}


def test_long_documents_take_no_more_memory_than_short_ones():
    long = random_text(100_000, seed=0)
    texts = [f"{long[: 100 * n]}茶{long[100 * n :]}" for n in range(32)]
    with duckdb.connect() as db:
        db.from_arrow(pa.table({"rank": list(range(32)), "text": texts})).create("texts")
        db.execute(
            "create table candidates as select 2 * range + 1 as later, 2 * range as earlier from range(16)"
        )
        tracemalloc.start()
        find_near_duplicates(db, 0.8, 5)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert db.execute("select count(*) from near").fetchall() == [(16,)]
    assert most < 100 * 2**20
