"""Find near-duplicate documents by the n-grams they share.

MinHash with banding (Broder 1997; Leskovec et al., Mining of Massive Datasets, section 3.4), with signatures
by the rensa library. They are stored in the listings, so no document is hashed twice; DuckDB makes buckets
and comparisons, on disk if memory is short.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import rensa

from data.cleaning.measures import Measures
from data.hashing import GOLDEN, mix

BANDS, ROWS = 21, 6  # at similarity 0.8, 99.8% of pairs meet in a band; at 0.5, 28%
PERMUTATIONS = BANDS * ROWS
ALGORITHM = f"rensa-{rensa.RMinHash.ALGORITHM_VERSION}"
_SEED = 1
_PAIRS = 1 << 16  # compared at once
_FOUND = pa.schema([("doc_id", pa.string()), ("duplicate_of", pa.string()), ("earlier", pa.int64())])


@dataclass(frozen=True, slots=True)
class Sketches:
    """MinHash signatures of D documents."""

    bands: np.ndarray  # [D, BANDS] uint32, a hash of each band
    signatures: np.ndarray  # [D, PERMUTATIONS] uint8, the low bits of each minimum (Li and Koenig 2010)


def sketch(measures: Measures, ngram: int) -> Sketches:
    """Compute the signatures of documents."""
    hashes, first = measures.letters.ngrams(ngram)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        mix(hashes), first.astype(np.uint64), PERMUTATIONS, _SEED
    )
    minima = np.array(matrix.to_rows(), dtype=np.uint64).reshape(-1, BANDS, ROWS)
    bands = np.zeros(minima.shape[:2], dtype=np.uint64)
    for row in range(ROWS):
        bands = mix(bands * GOLDEN + minima[:, :, row])
    return Sketches(
        (bands >> np.uint64(32)).astype(np.uint32), minima.reshape(-1, PERMUTATIONS).astype(np.uint8)
    )


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimate the Jaccard similarity of pairs of signatures, [P, PERMUTATIONS] each; [P] in [0, 1]."""
    same = (first == second).mean(axis=1)
    chance = 2.0**-8  # of equal low bits from different minima
    return np.maximum((same - chance) / (1 - chance), 0.0)


def find_near_duplicates(db: duckdb.DuckDBPyConnection, threshold: float) -> None:
    """Make the table `near` (doc_id, duplicate_of) of near-duplicates of earlier documents.

    Needs the table `sketched` (doc_id, rank, bands, signature). Each document is compared with the first of
    every bucket it falls into, whether or not that one is dropped itself.
    """
    db.execute(
        """
        create or replace table found (doc_id varchar, duplicate_of varchar, earlier bigint);
        create or replace table pairs as
        with bucketed as (
            select rank, unnest(bands) as hash, generate_subscripts(bands, 1) as band from sketched),
        leaders as (select band, hash, min(rank) as leader from bucketed group by all having count(*) > 1)
        select distinct leader, rank from bucketed join leaders using (band, hash) where rank > leader
        """
    )
    reader = db.cursor()
    reader.execute(
        """
        select b.doc_id, a.doc_id, leader, a.signature, b.signature from pairs
        join sketched a on a.rank = leader join sketched b on b.rank = pairs.rank
        """
    )
    while rows := reader.fetchmany(_PAIRS):
        later, earlier, leader, first, second = zip(*rows, strict=True)
        left, right = (np.frombuffer(b"".join(side), np.uint8) for side in (first, second))
        similar = similarity(left.reshape(-1, PERMUTATIONS), right.reshape(-1, PERMUTATIONS)) >= threshold
        alike = np.flatnonzero(similar).tolist()
        names = {"doc_id": later, "duplicate_of": earlier, "earlier": leader}
        same = pa.table({name: [values[i] for i in alike] for name, values in names.items()}, _FOUND)
        db.register("same", same)
        db.execute("insert into found select * from same")
        db.unregister("same")
    db.execute(
        "create or replace table near as "
        "select doc_id, arg_min(duplicate_of, earlier) as duplicate_of from found group by doc_id"
    )
