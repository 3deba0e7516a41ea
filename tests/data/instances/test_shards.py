import random

import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.instances import read_shard
from tests.corpora import make_corpus


def pages(shard):
    """First and last byte of the data of each column, its first page header left out."""
    group = pq.read_metadata(shard).row_group(0)
    for column in map(group.column, range(group.num_columns)):
        begin = column.dictionary_page_offset or column.data_page_offset
        yield begin + 64, begin + column.total_compressed_size


def test_every_flipped_bit_of_a_columns_data_is_found(tmp_path, samples, vocabulary_file):
    (shard,) = make_corpus(tmp_path / "w", "tea", samples / "tea.jsonl", vocabulary_file)
    whole = shard.read_bytes()
    damaged = tmp_path / shard.name
    draw = random.Random(0)
    for begin, end in pages(shard):
        content = bytearray(whole)
        content[draw.randrange(begin, end)] ^= 1 << draw.randrange(8)
        damaged.write_bytes(content)
        with pytest.raises(InputError, match="is gone or damaged .* run jixu doctor --fix"):
            read_shard(damaged)
