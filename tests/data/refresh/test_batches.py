from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from data.catalog import Source
from data.refresh.build import Piece
from data.refresh.plan import SMALL, SourceFile
from data.refresh.run import BATCH_SHARDS, BATCH_WEIGHT, building_batches, reading_batches
from data.sources import SourceRules


def files_of(sizes, pack=1):
    return [SourceFile(f"{n:05}.txt", SourceRules(), size, n // pack) for n, size in enumerate(sizes)]


def counts(files, workers=2):
    return [len(batch.items) for batch in reading_batches(files, workers)]


def test_small_files_are_read_together_large_or_remote_ones_alone_and_unchanged_ones_weigh_little():
    small = [1000] * 3000
    files = files_of(small)
    assert [file for batch in reading_batches(files, 2) for file in batch.items] == files
    together = counts(files)
    assert len(together) < 40 and together == sorted(together, reverse=True)
    assert max(together) * SMALL <= BATCH_WEIGHT
    assert counts(files_of([BATCH_WEIGHT] * 20)) == [1] * 20
    assert counts(files_of([BATCH_WEIGHT, *small]))[0] == 1
    assert all(count % 100 == 0 for count in counts(files_of(small, pack=100)))  # which share a listing
    files = files_of([BATCH_WEIGHT] * 300)
    for size, expected in ((BATCH_WEIGHT, 75), (1, 1)):
        known = [replace(file, previous=Source(file.uri, size, "digest", "listing")) for file in files]
        assert counts(known)[0] == expected
    remote = [SourceFile(f"s3://bucket/{n}", SourceRules(), pack=n) for n in range(300)]
    assert counts(remote) == [1] * 300


def listings(corpus):
    return set(corpus.place.documents("tea").glob("listing-*"))


def test_small_neighbours_share_listings_of_which_a_change_touches_few(tea, monkeypatch):
    """All else is as if each file had its own."""
    for number in range(100):
        sentences = [f"{season}天采茶{number}。" for season in "春夏秋冬"]
        tea.put(f"{number:03}", "".join(sentences[: 2 + 2 * (number % 2)]))  # two are no order to learn
    tea.refresh()
    first = listings(tea)
    assert 0 < len(first) < 20
    tea.put("0501", "山上的茶比山下的好喝。")
    (tea.raw / "007.jsonl").unlink()
    tea.refresh()
    assert 0 < len(listings(tea) - first) <= 3
    assert not tea.refresh().is_new
    documents = "select * exclude (version, first_version) from documents order by all"
    texts, index = tea.texts(), tea.ask(documents)
    monkeypatch.setattr("data.refresh.plan.SMALL", 0)
    alone = tea.changed(workspace=tea.root / "alone")
    alone.refresh()
    assert len(listings(alone)) == 100
    assert alone.texts() == texts and alone.ask(documents) == index
    assert {has_order for *_, has_order, _ in index} == {True, False}


@given(st.integers(0, 300), st.integers(1, 20))
def test_shards_are_built_in_few_tasks_that_end_together(count, workers):
    pieces = [Piece(number, f"{number}.parquet", None) for number in range(count)]
    batches = building_batches("茶", pieces, workers)
    assert [piece for batch in batches for piece in batch.items] == pieces
    sizes = [len(batch.items) for batch in batches]
    assert max(sizes, default=0) <= BATCH_SHARDS
    # a worker that has just begun a batch when the others run dry keeps them waiting no longer than this
    for number, size in enumerate(sizes):
        assert size == 1 or (size - 1) * workers * 2 < sum(sizes[number:])
    if count >= 2 * workers:
        assert sizes[-workers:] == [1] * workers
