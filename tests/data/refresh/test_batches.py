from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from data.catalog import Source
from data.refresh.build import Piece
from data.refresh.plan import SourceFile
from data.refresh.run import BATCH_SHARDS, BATCH_WEIGHT, FILE_WEIGHT, building_batches, reading_batches
from data.sources import SourceRules


def files_of(folder, sizes):
    files = []
    for number, size in enumerate(sizes):
        path = folder / f"{number:05}.txt"
        with path.open("wb") as file:
            file.truncate(size)
        files.append(SourceFile(str(path), SourceRules()))
    return files


def counts(files, workers=2):
    return [len(batch.items) for batch in reading_batches(files, workers)]


def test_small_files_are_read_together_large_or_remote_ones_alone_and_unchanged_ones_weigh_little(tmp_path):
    small = [1000] * 3000
    files = files_of(tmp_path, small)
    assert [file for batch in reading_batches(files, 2) for file in batch.items] == files
    together = counts(files)
    assert len(together) < 40 and together == sorted(together, reverse=True)
    assert max(together) * FILE_WEIGHT <= BATCH_WEIGHT
    assert counts(files_of(tmp_path, [BATCH_WEIGHT] * 20)) == [1] * 20
    assert counts(files_of(tmp_path, [BATCH_WEIGHT, *small]))[0] == 1
    files = files_of(tmp_path, [BATCH_WEIGHT] * 300)
    for size, expected in ((BATCH_WEIGHT, 75), (1, 1)):
        known = [replace(file, previous=Source(file.uri, size, "digest", "listing")) for file in files]
        assert counts(known)[0] == expected
    remote = [SourceFile(f"s3://bucket/{number}", SourceRules()) for number in range(300)]
    assert counts(remote) == [1] * 300


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
