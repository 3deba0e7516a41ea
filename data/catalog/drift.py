"""How far the documents that a version added are from those before: words, [UNK], lengths.

The two sides are samples of documents by their id, which is a hash: the same ones every time, and for a
larger corpus no more work than reading its index.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from data.catalog.statistics import Statistics
from data.catalog.versions import require_version, version_shards
from data.errors import InputError

SAMPLED = 20_000  # documents of each side
READ_BY_MODEL = 500  # of them: a model reads no more than some tens of thousands of tokens
MEASURES = ("new_words", "unknown", "lengths", "drift", "mlm_loss")
_condition = re.compile(rf"({'|'.join(MEASURES)})\s*>\s*(-?(?:\d+(?:\.\d+)?|\.\d+))")


@dataclass(frozen=True, slots=True)
class Drift:
    """Three shares in [0, 1], 0 where the added documents are like the older ones, and a model's loss."""

    new_words: float  # of the words in added documents, those that no older document has
    unknown: float  # by how much [UNK] is more frequent; 0 where it is less
    lengths: float  # half the sum of differences between the two histograms of lengths, by powers of two
    added: int  # documents looked at
    older: int
    # by how many nats a masked token of the added ones is harder for a checkpoint; None: not asked
    mlm_loss: float | None = None

    @property
    def drift(self) -> float:
        """The largest of the three shares."""
        return max(self.new_words, self.unknown, self.lengths)

    def rows(self) -> list[dict[str, object]]:
        """As a table."""
        return [
            {"measure": name, "value": value}
            for name, value in {**asdict(self), "drift": self.drift}.items()
            if value is not None
        ]


@dataclass(frozen=True, slots=True)
class Condition:
    """A measure and what it has to exceed."""

    measure: str
    bound: float

    def holds(self, drift: Drift) -> bool:
        value = getattr(drift, self.measure)
        return value is not None and value > self.bound


def parse_condition(text: str) -> Condition:
    """The condition that a text such as "drift>0.2" names. Raises InputError."""
    found = _condition.fullmatch(text.strip())
    if not found:
        raise InputError(f"{text!r} is no condition: write MEASURE>NUMBER, of {', '.join(MEASURES)}")
    return Condition(found[1], float(found[2]))


def measure_drift(statistics: Statistics, corpus: str) -> Drift | None:
    """Drift of the current version's new documents; None where it has none, or nothing is older."""
    version = require_version(statistics.db, corpus).version
    db = statistics.db.cursor()
    db.execute("create temp table sides (doc_id varchar, chars bigint, added boolean)")
    for added, comparison in ((True, "="), (False, "<")):
        db.execute(
            f"""
            insert into sides select doc_id, chars, ? from documents
            where corpus = ? and dropped_reason is null and first_version {comparison} ?
            order by doc_id limit {SAMPLED}
            """,
            [added, corpus, version],
        )
    counts = dict(db.execute("select added, count(*) from sides group by added").fetchall())
    if len(counts) < 2:
        return None
    return Drift(
        _new_words(db, corpus),
        _more_unknown(db, corpus, statistics.tokenizer(corpus).unknown_id),
        _length_distance(db),
        counts[True],
        counts[False],
    )


def describe_drift(drift: Drift) -> str:
    """What a person is told of it."""
    loss = "" if drift.mlm_loss is None else f"; MLM loss {drift.mlm_loss:+.3f}"
    return (
        f"drift of the new documents {drift.drift:.3f} (new words {drift.new_words:.3f}, more [UNK] "
        f"{drift.unknown:.3f}, lengths {drift.lengths:.3f}){loss}"
    )


def sample_shards(statistics: Statistics, corpus: str, folder: Path) -> tuple[Path, Path]:
    """Write instances of some added and of some older documents as a shard each, for a model to read."""
    db, root = statistics.db, statistics.workspace.root
    version = require_version(db, corpus)
    shards = [root / shard.path for shard in version_shards(db, version)]
    if version.similar_words:
        shutil.copy(root / version.similar_words, folder)  # a shard looks for it beside itself
    table = ds.dataset(shards)
    written = []
    for name, comparison in (("added", "="), ("older", "<")):
        found = db.execute(
            f"select doc_id from documents where corpus = ? and dropped_reason is null and first_version "
            f"{comparison} ? order by doc_id limit {READ_BY_MODEL}",
            [corpus, version.version],
        ).fetchall()
        instances = table.to_table(filter=ds.field("doc_id").isin([doc_id for (doc_id,) in found]))
        path = folder / f"{name}.parquet"
        # every shard of a version says the same of itself
        pq.write_table(instances.replace_schema_metadata(pq.read_schema(shards[0]).metadata), path)
        written.append(path)
    return written[0], written[1]


def _new_words(db, corpus: str) -> float:
    return _one(
        db,
        """
        with words as (
            select unnest(flatten(words)) as word, added from document_texts join sides using (doc_id)
            where corpus = ?),
        known as (select distinct word from words where not added)
        select coalesce(avg((word not in (from known))::integer), 0) from words where added
        """,
        corpus,
    )


def _more_unknown(db, corpus: str, unknown_id: int) -> float:
    return _one(
        db,
        """
        with tokens as (
            select added, sum(len(input_ids) - 2) as tokens,
                sum(len(list_filter(input_ids, lambda id: id = ?))) as unknown
            from instances join sides using (doc_id) where corpus = ? group by added)
        select greatest(0, coalesce(max(unknown / tokens) filter (added), 0)
            - coalesce(max(unknown / tokens) filter (not added), 0)) from tokens
        """,
        unknown_id,
        corpus,
    )


def _length_distance(db) -> float:
    return _one(
        db,
        """
        with bars as (
            select floor(log2(chars + 1)) as bar, count(*) filter (added) as added,
                count(*) filter (not added) as older
            from sides group by bar)
        select sum(abs(added / (select sum(added) from bars) - older / (select sum(older) from bars))) / 2
        from bars
        """,
    )


def _one(db, query: str, *parameters: object) -> float:
    ((value,),) = db.execute(query, list(parameters)).fetchall()
    return float(value)
