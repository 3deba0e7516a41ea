"""Questions about a workspace, answered as DuckDB relations: `.df()`, `.arrow()`, `.pl()` or more SQL from
there.

>>> statistics = open_workspace("workspace")          # doctest: +SKIP
>>> statistics.funnel("law").df()                     # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import duckdb

from data.catalog import heal_views, require_version
from data.records import InputError
from data.shards import LENGTH_BIN
from data.tokenization import Tokenizer, find_tokenizer, load_tokenizer
from data.workspace import Workspace, default_workspace


class Statistics:
    """A read-only look at a workspace as it is now; flows may write to it meanwhile. Close it, or use
    `with`.
    """

    def __init__(self, workspace: Workspace):
        if not workspace.catalog.is_file():
            raise InputError(f"no catalog in {workspace.root}: python -m flows.refresh_corpus makes one")
        heal_views(workspace)
        self.workspace = workspace
        self.db = duckdb.connect(str(workspace.catalog), read_only=True)

    def __enter__(self) -> Statistics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    def sql(self, query: str, parameters: list[object] | None = None) -> duckdb.DuckDBPyRelation:
        """Any query over the catalog's tables and views."""
        return self.db.sql(query, params=parameters)

    def versions(self) -> duckdb.DuckDBPyRelation:
        """Every version of every corpus, the newest first."""
        return self.sql(
            "select corpus, version, parent, documents, characters, words, sentences, instances, tokens, "
            "sop, "
            "created_at from versions order by corpus, version desc"
        )

    def funnel(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """How much went in and out of each stage of the corpus's current version, and why."""
        version = require_version(self.db, corpus).version
        return self.sql(
            'select step, stage, unit, "in", "out", reason, count from funnel where corpus = ? and version '
            "= ? "
            "order by step, unit desc, reason",
            [corpus, version],
        )

    def dropped(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Every document that was not used: where it stood and why."""
        return self.sql(
            "select source_uri, dropped_stage, dropped_reason, chars from documents "
            "where corpus = ? and dropped_reason is not null",
            [corpus],
        )

    def lengths(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Instances by length in tokens, from the shards' own histograms."""
        version = require_version(self.db, corpus).version
        return self.sql(
            f"""
            select (bar - 1) * {LENGTH_BIN} + 1 as tokens_from, bar * {LENGTH_BIN} as tokens_to,
                sum(length_histogram[bar])::bigint as instances
            from (select length_histogram, unnest(range(1, len(length_histogram) + 1)) as bar
                  from version_shards join shards using (corpus, path) where corpus = ? and version = ?)
            group by bar order by bar
            """,
            [corpus, version],
        )

    def words(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """The most frequent words of two or more Chinese characters."""
        return self.sql(
            f"{_WORDS} select word, count(*) as count from words where len(word) > 1 "
            r"and regexp_full_match(word, '[\x{4e00}-\x{9fff}]+') group by word order by count desc, word "
            r"limit ?",
            [corpus, limit],
        )

    def word_lengths(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Words by number of characters, among those of Chinese characters alone."""
        return self.sql(
            f"{_WORDS} select least(len(word), 6) as characters, count(*) as count from words "
            r"where regexp_full_match(word, '[\x{4e00}-\x{9fff}]+') group by all order by characters",
            [corpus],
        )

    def tokens(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """The most frequent token ids."""
        return self.sql(
            "select id, count(*) as count from (select unnest(input_ids) as id from instances where corpus "
            "= ?) "
            "group by id order by count desc, id limit ?",
            [corpus, limit],
        )

    def unknown_share(self, corpus: str) -> float:
        """Share of [UNK] among the corpus's tokens, special ones left out."""
        tokenizer = self.tokenizer(corpus)
        ((share,),) = self.db.execute(
            "select coalesce(avg((id = ?)::integer), 0) from "
            "(select unnest(input_ids) as id from instances where corpus = ?) where id not in (?, ?)",
            [tokenizer.unknown_id, corpus, tokenizer.cls_id, tokenizer.sep_id],
        ).fetchall()
        return share

    def masks(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """What the stored masks put in place of tokens: [MASK], the same token, or another."""
        mask_id = self.tokenizer(corpus).mask_id
        return self.sql(
            """
            with masked as (
                select unnest(masked_input_ids) as now, unnest(masked_labels) as label
                from instances where corpus = ?)
            select case when now = ? then '[MASK]' when now = label then 'kept' else 'random' end as
            replacement, count(*) as count, count(*) / sum(count(*)) over () as share from masked group by all
            order by count desc """,
            [corpus, mask_id],
        )

    def source_shares(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Documents and characters by source file."""
        return self.sql(
            "select regexp_replace(source_uri, '#[^#/]*$', '') as source, count(*) as documents, "
            "count(dropped_reason) as dropped, sum(chars)::bigint as chars from documents where corpus = ? "
            "group by source order by chars desc",
            [corpus],
        )

    def tokenizer(self, corpus: str) -> Tokenizer:
        """The tokenizer the corpus was made with."""
        return load_tokenizer(find_tokenizer(require_version(self.db, corpus).tokenizer))

    def texts(self, corpus: str) -> Iterator[str]:
        """Every document of the corpus, its sentences joined by line ends."""
        require_version(self.db, corpus)
        cursor = self.db.cursor()
        cursor.execute("select text from document_texts where corpus = ?", [corpus])
        while rows := cursor.fetchmany(1000):
            for (text,) in rows:
                yield text

    def sentences(self, corpus: str) -> Iterator[str]:
        """Every sentence of the corpus."""
        for text in self.texts(corpus):
            yield from text.split("\n")

    def sample_instances(self, corpus: str, count: int = 5) -> list[dict[str, object]]:
        """Some instances as text, always the same ones: plain, masked, and with their SOP label."""
        tokenizer = self.tokenizer(corpus)
        rows = self.db.execute(
            "select instance_id, doc_id, input_ids, sop_label, masked_positions, masked_input_ids from "
            "instances "
            "where corpus = ? order by hash(instance_id), instance_id limit ?",
            [corpus, count],
        ).fetchall()
        samples = []
        for instance_id, doc_id, input_ids, sop_label, positions, replacements in rows:
            masked = list(input_ids)
            for position, token in zip(positions, replacements, strict=True):
                masked[position] = token
            samples.append(
                {
                    "instance_id": instance_id,
                    "doc_id": doc_id,
                    "text": tokenizer.decode(input_ids),
                    "masked": tokenizer.decode(masked),
                    "sop_label": sop_label,
                }
            )
        return samples


_WORDS = "with words as (select unnest(flatten(words)) as word from document_texts where corpus = ?)"


def open_workspace(path: Path | str | None = None) -> Statistics:
    """A read-only look at the workspace in a folder; JIXU_WORKSPACE or ./workspace if none is given."""
    return Statistics(Workspace(Path(path) if path else default_workspace()))
