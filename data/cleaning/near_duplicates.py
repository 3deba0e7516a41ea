"""Find near-duplicate documents by the n-grams they share.

MinHash with banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, section 3.4), with minima by
the rensa library, gives candidates; their texts decide. The bands are stored in the listings, so no document
is hashed twice; DuckDB makes the buckets, on disk if memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import rensa

from data.cleaning.measures import Letters, letters_of
from data.hashing import GOLDEN, mix

if TYPE_CHECKING:  # copies of a task's texts are found without it
    import duckdb

BANDS, ROWS = 31, 4  # at similarity 0.6, 98.7% of pairs meet in a band; at 0.2, 5%
ALGORITHM = f"rensa-{rensa.RMinHash.ALGORITHM_VERSION}"
_SEED = 1
_PAIRS, _CHARACTERS = 256, 1 << 20  # at once


def sketch(letters: Letters, ngram: int) -> np.ndarray:
    """Compute a hash of each band of MinHash values, [D, BANDS] uint32."""
    hashes, first = letters.ngrams(ngram)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        mix(hashes), first.astype(np.uint64), BANDS * ROWS, _SEED
    )
    minima = np.array(matrix.to_rows(), dtype=np.uint64).reshape(-1, BANDS, ROWS)
    bands = np.zeros(minima.shape[:2], dtype=np.uint64)
    for row in range(ROWS):
        bands = mix(bands * GOLDEN + minima[:, :, row])
    return (bands >> np.uint64(32)).astype(np.uint32)


def find_candidates(db: duckdb.DuckDBPyConnection) -> None:
    """Make the table `candidates` (later, earlier), ranks, from `sketched` (rank, is_known, bands).

    A document is compared with the first and the previous one of every bucket it falls into, unless it is
    known to differ from the others that are known.
    """
    db.execute(
        """
        create or replace table candidates as
        with members as (
            select rank, is_known, unnest(bands) as hash, generate_subscripts(bands, 1) as band
            from sketched),
        buckets as (
            select band, hash from members group by all having count(*) > 1 and not bool_and(is_known)),
        beside as (
            select rank, is_known, [min(rank) over bucket, lag(rank) over bucket] as others
            from members semi join buckets using (band, hash)
            window bucket as (partition by band, hash order by rank)),
        pairs as (select rank as later, unnest(others) as earlier from beside where not is_known)
        select distinct later, earlier from pairs where earlier < later
        """
    )


def find_near_duplicates(db: duckdb.DuckDBPyConnection, threshold: float, ngram: int) -> None:
    """Make the table `near` (later, earlier) of documents and the earlier ones that they nearly repeat.

    Needs `candidates` and the table `texts` (rank, text) of their documents. The Jaccard similarity of such a
    pair is at least the threshold, and the earlier document is itself no near duplicate.
    """
    db.execute("create or replace table alike (later bigint, earlier bigint)")
    reader = db.cursor().execute(
        """
        select later, earlier, a.text, b.text from candidates
        join texts a on a.rank = later join texts b on b.rank = earlier
        """
    )
    for rows in fetch_texts(reader):
        later, earlier, first, second = zip(*rows, strict=True)
        alike = _similarities(first, second, ngram) >= threshold
        _insert(db, "alike", np.array(later)[alike], np.array(earlier)[alike])
    db.execute("create or replace table near (later bigint, earlier bigint)")
    _insert(db, "near", *np.fromiter(chain.from_iterable(_nearest(db)), dtype=np.int64).reshape(-1, 2).T)


def fetch_texts(reader: duckdb.DuckDBPyConnection) -> Iterator[list[tuple]]:
    """Fetch the rows of a query, at most _PAIRS at a time and fewer of long texts."""
    rows, characters = [], 0
    while row := reader.fetchone():
        rows.append(row)
        characters += sum(len(value) for value in row if isinstance(value, str))
        if len(rows) == _PAIRS or characters > _CHARACTERS:
            yield rows
            rows, characters = [], 0
    if rows:
        yield rows


def find_copies(
    texts: Sequence[str], others: Sequence[str], threshold: float, ngram: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the texts that nearly repeat one of the others [n], ascending, and which one each repeats [n].

    Their Jaccard similarity is at least the threshold. Of a bucket of others the first and the last are
    compared.
    """
    ours, theirs = (sketch(letters_of(part), ngram) for part in (texts, others))
    candidates = _met(ours, theirs)
    similarity = _similarities_of(candidates, texts, others, ngram)
    order = np.lexsort((candidates[:, 1], -similarity, candidates[:, 0]))
    candidates = candidates[order[similarity[order] >= threshold]]
    found, first = np.unique(candidates[:, 0], return_index=True)
    return found, candidates[first, 1]


def find_alike(texts: Sequence[str], threshold: float, ngram: int) -> np.ndarray:
    """Find pairs of texts that nearly repeat each other, by their numbers, [P, 2].

    Their Jaccard similarity is at least the threshold. Each is compared with the first and the last text of
    every bucket it falls into.
    """
    bands = sketch(letters_of(texts), ngram)
    candidates = np.unique(np.sort(_met(bands, bands), axis=1), axis=0)
    candidates = candidates[candidates[:, 0] < candidates[:, 1]]
    return candidates[_similarities_of(candidates, texts, texts, ngram) >= threshold]


def _met(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The pairs of texts to compare, by their bands: each of ours, and the first and last of its buckets of
    theirs, [P, 2].
    """
    pairs = []
    for band, known in zip(ours.T, theirs.T, strict=True):
        order = np.argsort(known, kind="stable")
        begin, end = (np.searchsorted(known[order], band, side) for side in ("left", "right"))
        met = np.flatnonzero(begin < end)
        pairs += [np.stack([met, order[at[met]]], axis=1) for at in (begin, end - 1)]
    return np.unique(np.concatenate(pairs), axis=0)


def _similarities_of(
    pairs: np.ndarray, texts: Sequence[str], others: Sequence[str], ngram: int
) -> np.ndarray:
    """Compute the Jaccard similarities of pairs of numbers, [P]."""
    parts = [
        _similarities([texts[a] for a, _ in part], [others[b] for _, b in part], ngram)
        for part in np.array_split(pairs, len(pairs) // _PAIRS + 1)
    ]
    return np.concatenate(parts)


def _similarities(first: Sequence[str], second: Sequence[str], ngram: int) -> np.ndarray:
    """Compute the Jaccard similarities of pairs of texts, [P]."""
    hashes, bounds = letters_of([*first, *second]).ngrams(ngram)
    grams = [np.unique(hashes[begin:end]) for begin, end in pairwise(bounds.tolist())]
    pairs = zip(grams[: len(first)], grams[len(first) :], strict=True)
    shared = np.array([len(np.intersect1d(a, b, assume_unique=True)) for a, b in pairs])
    sizes = np.array(list(map(len, grams))).reshape(2, -1).sum(axis=0)
    return shared / np.maximum(sizes - shared, 1)


def _nearest(db: duckdb.DuckDBPyConnection) -> Iterator[tuple[int, int]]:
    """Yield the pairs of `alike` whose earlier document stays, one for each document that does not."""
    ((count,),) = db.execute("select coalesce(max(later), 0) from alike").fetchall()
    is_dropped = bytearray(count + 1)
    reader = db.cursor().execute("select later, earlier from alike order by later, earlier")
    while rows := reader.fetchmany(1 << 16):
        for later, earlier in rows:
            if not is_dropped[later] and not is_dropped[earlier]:
                is_dropped[later] = True
                yield later, earlier


def _insert(db: duckdb.DuckDBPyConnection, table: str, later: np.ndarray, earlier: np.ndarray) -> None:
    db.from_arrow(pa.table([later, earlier], ["later", "earlier"])).insert_into(table)
