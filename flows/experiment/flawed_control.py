"""The recipe that lowered ALBERT's accuracy on LCQMC, rebuilt as a control: what it did wrong is here
alone.

Its documents were made with the gold labels of the task, dev and test included; its label of a token inside a
word was the id of the "##" entry that BERT's vocabulary has for the character; its rate was meant for batches
of 4,096 sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.cluster.hierarchy import DisjointSet

from data.errors import InputError
from data.files import replacing, sha256
from data.instances import read_shard
from data.tokenization import WordPieceTokenizer

# of LAMB for 4,096 sequences to a batch (Lan et al. 2020, section 4.1)
RATE_OF_LARGE_BATCHES = 1.76e-3
BATCH_TOKENS = 2 * 512  # it was used for two sequences


def group_by_labels(pairs: Iterable[tuple[str, str, bool]]) -> list[list[str]]:
    """Documents of sentences that gold labels say are alike: (text, text, alike) -> sentences in the order
    they came. A sentence that is like no other is a document by itself.

    >>> group_by_labels([("a", "b", True), ("c", "d", False), ("b", "e", True)])
    [['a', 'b', 'e'], ['c'], ['d']]
    """
    alike: DisjointSet[str] = DisjointSet()
    for first, second, same in pairs:
        alike.add(first)
        alike.add(second)
        if same:
            alike.merge(first, second)
    groups: dict[str, list[str]] = {}
    for text in alike:
        groups.setdefault(alike[text], []).append(text)
    return list(groups.values())


def double_labels(shards: Sequence[Path], folder: Path, tokenizer: object) -> tuple[Path, ...]:
    """Copies of shards whose stored labels are the "##" entries for tokens inside words.

    Raises InputError when the vocabulary has no such entries of the corpus's characters.
    """
    twins = _twins(tokenizer)
    written, changed = [], 0
    for shard in shards:
        path = folder / f"{shard.stem}-{sha256(shard)[:8]}.parquet"
        table = read_shard(shard)
        doubled = _doubled(table, twins)
        changed += int((_values(doubled["masked_labels"]) != _values(table["masked_labels"])).sum())
        if not path.is_file():
            size = max(pq.read_metadata(shard).row_group(0).num_rows, 1)
            with replacing(path) as temporary:
                pq.write_table(doubled, temporary, row_group_size=size)
        written.append(path)
    if not changed:
        raise InputError(
            "the vocabulary has no '##' entries for Chinese characters, which the flawed control's labels "
            "are: pass --tokenizer with the vocab.txt of BERT-base Chinese, or leave the arm out"
        )
    return tuple(written)


def _twins(tokenizer: object) -> np.ndarray:
    """Of every id, that of the "##" entry, or itself where there is none."""
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("the flawed control needs a vocab.txt: a SentencePiece model has no '##' entries")
    ids = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    return np.array([ids.get(f"##{token}", number) for number, token in enumerate(tokenizer.vocabulary)])


def _values(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().flatten().to_numpy()


def _doubled(table: pa.Table, twins: np.ndarray) -> pa.Table:
    """The table with other labels; a token is inside a word where no whole word starts."""
    positions = table["masked_positions"].combine_chunks()
    rows = np.repeat(np.arange(len(positions)), np.diff(positions.offsets.to_numpy()))
    starts = table["word_starts"].to_pylist()
    inside = np.array(
        [starts[row][at] == "0" for row, at in zip(rows, _values(table["masked_positions"]), strict=True)],
        dtype=bool,
    )
    labels = table["masked_labels"].combine_chunks()
    plain = _values(table["masked_labels"])
    doubled = np.where(inside, twins[plain], plain).astype(plain.dtype)
    column = pa.ListArray.from_arrays(labels.offsets, pa.array(doubled))
    place = table.column_names.index("masked_labels")
    return table.set_column(place, table.schema.field(place), column.cast(table.schema.field(place).type))
