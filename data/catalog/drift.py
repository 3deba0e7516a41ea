"""Drift: how far the documents that a version added differ from older ones in words, [UNK] and lengths.

Both sides are samples of documents by their id, which is a hash: the same ones every time, and for a larger
corpus no more work than reading its index.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.catalog.statistics import Statistics
from data.catalog.versions import require_version, version_shards
from data.errors import InputError
from data.instances import read_shard

SAMPLED = 20_000  # documents of each side
READ_BY_MODEL = 500  # of those: some tens of thousands of tokens for a model to read
MEASURES = ("new_words", "unknown", "lengths", "drift", "mlm_loss")
_condition = re.compile(rf"({'|'.join(MEASURES)})\s*>\s*(-?(?:\d+(?:\.\d+)?|\.\d+))")


# up to $most documents that the version added, and as many older ones
_SIDES = """
select doc_id, chars, first_version = $version as added from documents
where corpus = $corpus and dropped_reason is null
qualify row_number() over (partition by added order by doc_id) <= $most
"""
# What chance alone brings is subtracted, with n added and m older documents. If the n were drawn from all, a
# word of f documents would stand in no other with probability C(n, f) / C(n + m, f) (Hurlbert 1971). Two
# samples of one distribution of lengths differ in a bar of share p by about
# sqrt(2 / pi * p * (1 - p) * (1 / n + 1 / m)), the mean of a half-normal distribution
_MEASURED = """
with sizes as (select count(*) filter (added) as n, count(*) filter (not added) as m from sides),
occurrences as (
    select unnest(flatten(words)) as word, doc_id, added from document_texts join sides using (doc_id)
    where corpus = $corpus),
words as (
    select count(*) as times, count(*) filter (added) as times_added, count(distinct doc_id) as f
    from occurrences group by word),
new_words as (
    select sum(times) filter (times = times_added) / sum(times_added) as share,
        sum(times * exp(lgamma(n + 1) - lgamma(n - f + 1) - lgamma(n + m + 1) + lgamma(n + m - f + 1)))
            filter (f <= n) / sum(times) * (n + m) / n as by_chance
    from words, sizes group by n, m),
tokens as (
    select added, sum(len(list_filter(input_ids, lambda id: id not in ($cls, $sep)))) as tokens,
        sum(len(list_filter(input_ids, lambda id: id = $unknown))) as unknown
    from instances join sides using (doc_id) where corpus = $corpus group by added),
bars as (
    select floor(log2(chars + 1)) as bar, count(*) filter (added) as added,
        count(*) filter (not added) as older
    from sides group by bar),
shares as (
    select added / n - older / m as difference, (added + older) / (n + m) as p, 1 / n + 1 / m as spread
    from bars, sizes)
select
    (select greatest(0, coalesce(max(share - by_chance), 0)) from new_words),
    (select greatest(0, coalesce(max(unknown / tokens) filter (added), 0)
        - coalesce(max(unknown / tokens) filter (not added), 0)) from tokens),
    (select greatest(0, sum(abs(difference) - sqrt(2 / pi() * p * (1 - p) * spread)) / 2) from shares)
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """Three shares in [0, 1], near 0 for documents like the older ones, and a model's loss."""

    new_words: float  # share of the words in added documents that no older one has, beyond what chance brings
    unknown: float  # increase of the share of [UNK]; 0 for a decrease
    lengths: float  # distance between the distributions of lengths beyond what chance brings
    added: int  # documents sampled
    older: int
    mlm_loss: float | None = None  # increase of a checkpoint's loss in nats a token; None: not measured

    @property
    def drift(self) -> float:
        """Return the largest of the three shares."""
        return max(self.new_words, self.unknown, self.lengths)

    def measures(self) -> dict[str, float | None]:
        """Return every measure by name."""
        return {**asdict(self), "drift": self.drift}


@dataclass(frozen=True, slots=True)
class Condition:
    """A measure and the value that it has to exceed."""

    measure: str
    bound: float

    def holds(self, drift: Drift) -> bool:
        value = getattr(drift, self.measure)
        return value is not None and value > self.bound


def parse_condition(text: str) -> Condition:
    """Read a condition such as "drift>0.2". Raises InputError for any other text."""
    match = _condition.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text!r} is no condition: write MEASURE>NUMBER, of {', '.join(MEASURES)}")
    return Condition(match[1], float(match[2]))


def measure_drift(statistics: Statistics, corpus: str) -> Drift | None:
    """Measure the drift of the current version's new documents; None if there are no new or no older ones."""
    version = require_version(statistics.db, corpus).version
    db = statistics.db.cursor()
    sampled = {"corpus": corpus, "version": version, "most": SAMPLED}
    db.execute(f"create temp table sides as {_SIDES}", sampled)
    counts = dict(db.execute("select added, count(*) from sides group by added").fetchall())
    if len(counts) < 2:
        return None
    (row,) = db.execute(_MEASURED, statistics.token_parameters(corpus)).fetchall()
    new_words, unknown, lengths = map(float, row)
    return Drift(new_words, unknown, lengths, counts[True], counts[False])


def describe_drift(drift: Drift) -> str:
    """Describe a drift in a line."""
    loss = "" if drift.mlm_loss is None else f"; MLM loss {drift.mlm_loss:+.3f}"
    return (
        f"drift of {drift.added:,} new document(s) {drift.drift:.3f} (new words {drift.new_words:.3f}, "
        f"more [UNK] {drift.unknown:.3f}, lengths {drift.lengths:.3f}){loss}"
    )


def sample_shards(statistics: Statistics, corpus: str, folder: Path) -> tuple[Path, Path]:
    """Write instances of some added and some older documents as a shard each, for a model to read."""
    db, root = statistics.db, statistics.workspace.root
    version = require_version(db, corpus)
    shards = [root / shard.path for shard in version_shards(db, version)]
    if version.similar_words:
        shutil.copy(root / version.similar_words, folder)  # a shard expects it in its own folder
    sampled = {"corpus": corpus, "version": version.version, "most": READ_BY_MODEL}
    rows = db.execute(_SIDES, sampled).fetchall()
    written = folder / "added.parquet", folder / "older.parquet"
    for path, is_added in zip(written, (True, False), strict=True):
        chosen = pc.field("doc_id").isin([doc_id for doc_id, _, added in rows if added == is_added])
        instances = pa.concat_tables(read_shard(shard).filter(chosen) for shard in shards)
        # all shards of a version have the same metadata
        pq.write_table(instances.replace_schema_metadata(pq.read_schema(shards[0]).metadata), path)
    return written
