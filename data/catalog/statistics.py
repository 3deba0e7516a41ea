"""Questions about a workspace, answered as DuckDB relations: `.df()`, `.to_arrow_table()`, `.pl()` or more
SQL from there.

>>> statistics = open_workspace("workspace")          # doctest: +SKIP
>>> statistics.funnel("law").df()                     # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import duckdb
import pyarrow as pa

from data.catalog.database import heal_views
from data.catalog.versions import require_version
from data.errors import InputError
from data.instances import LENGTH_BIN
from data.tokenization import Tokenizer, find_tokenizer, load_tokenizer
from data.workspace import Workspace, default_workspace


class Statistics:
    """A read-only look at a workspace as it is now; flows may write to it meanwhile. Close it, or use
    `with`.
    """

    def __init__(self, workspace: Workspace):
        if not workspace.catalog.is_file():
            raise InputError(f"no catalog in {workspace.root}: jixu refresh-corpus makes one")
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
            f"select {_SOURCE} as source, count(*) as documents, "
            "count(dropped_reason) as dropped, sum(chars)::bigint as chars from documents where corpus = ? "
            "group by source order by chars desc",
            [corpus],
        )

    def unknown_by_source(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Tokens and the share of [UNK] among them by source file, the worst first."""
        tokenizer = self.tokenizer(corpus)
        return self.sql(
            f"""
            with tokens as (
                select doc_id, count(*) as tokens, count(*) filter (id = ?) as unknown
                from (select doc_id, unnest(input_ids) as id from instances where corpus = ?)
                where id not in (?, ?) group by doc_id)
            select {_SOURCE} as source, sum(tokens)::bigint as tokens, sum(unknown)::bigint as unknown,
                sum(unknown) / sum(tokens) as unknown_share
            from tokens join document_texts using (doc_id) where corpus = ?
            group by source order by unknown_share desc, source
            """,
            [tokenizer.unknown_id, corpus, tokenizer.cls_id, tokenizer.sep_id, corpus],
        )

    def coverage_by_source(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """By source file, how many of the vocabulary's tokens it uses, and how many no other source does."""
        return self.sql(
            f"""
            with used as (
                select distinct {_SOURCE} as source, id
                from (select doc_id, unnest(input_ids) as id from instances where corpus = ?)
                join document_texts using (doc_id) where corpus = ?),
            shared as (select id, count(*) as sources from used group by id)
            select source, count(*) as tokens, count(*) / ? as share,
                count(*) filter (sources = 1) as only_here
            from used join shared using (id) group by source order by tokens desc, source
            """,
            [corpus, corpus, self.tokenizer(corpus).vocab_size],
        )

    def vocabulary_coverage(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """How many of the vocabulary's tokens the corpus uses at all, and at least 10, 100, 1000 times."""
        tokenizer = self.tokenizer(corpus)
        return self.sql(
            """
            with counted as (
                select id, count(*) as count
                from (select unnest(input_ids) as id from instances where corpus = ?) group by id),
            levels as (select unnest([1, 10, 100, 1000]) as at_least)
            select at_least, count(id) as tokens, count(id) / ? as share
            from levels left join counted on count >= at_least group by at_least order by at_least
            """,
            [corpus, tokenizer.vocab_size],
        )

    def new_words(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """Words that the current version has and the one before had not, the most frequent first."""
        version = require_version(self.db, corpus).version
        return self.sql(
            f"""
            with added as (
                select unnest(flatten(t.words)) as word
                from document_texts t join documents using (corpus, doc_id)
                where corpus = ? and dropped_reason is null and first_version = ?),
            older as (
                select distinct unnest(flatten(t.words)) as word
                from document_texts t join documents using (corpus, doc_id)
                where corpus = ? and dropped_reason is null and first_version < ?)
            select word, count(*) as count from added anti join older using (word)
            where len(word) > 1 and {_IS_HAN} group by word order by count desc, word limit ?
            """,
            [corpus, version, corpus, version, limit],
        )

    def duplicates(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Every repeated document: where it stood, and where the document stands that it repeats."""
        return self.sql(
            """
            select d.source_uri, d.dropped_reason as reason, d.chars, kept.source_uri as repeats
            from documents d left join documents kept
                on kept.corpus = d.corpus and kept.doc_id = d.duplicate_of and kept.dropped_reason is null
            where d.corpus = ? and d.duplicate_of is not null order by d.source_uri
            """,
            [corpus],
        )

    def version_changes(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """What each version of a corpus added to and took from the one before."""
        return self.sql(
            """
            select version, parent, created_at, recipe_hash, documents, instances, tokens,
                documents - lag(documents, 1, 0) over versions_in_order as documents_added,
                tokens - lag(tokens, 1, 0) over versions_in_order as tokens_added,
                (select count(*) from version_shards s where s.corpus = v.corpus and s.version = v.version
                    and s.path not in (select path from version_shards p where p.corpus = v.corpus
                        and p.version = v.parent)) as new_shards,
                (select count(*) from version_shards s where s.corpus = v.corpus and s.version = v.parent
                    and s.path not in (select path from version_shards p where p.corpus = v.corpus
                        and p.version = v.version)) as gone_shards
            from versions v where corpus = ?
            window versions_in_order as (order by version) order by version
            """,
            [corpus],
        )

    def changed_documents(
        self, corpus: str, newer: int | None = None, older: int | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The documents that one version has and another has not, and why a removed one went: the reason it
        is dropped for now; null where its source no longer holds it.

        By default the current version and the one before it. Raises InputError for a version that is not
        there.
        """
        newest = require_version(self.db, corpus).version
        newer = newest if newer is None else newer
        if older is None:
            before = "select parent from versions where corpus = ? and version = ?"
            older = next((parent for (parent,) in self.db.execute(before, [corpus, newer]).fetchall()), None)
        new = self._index(corpus, newer)
        # of the first version, everything is new
        old = self._index(corpus, older) if older is not None else f"{new} where false"
        return self.sql(
            f"""
            with new as (select * from {new}), old as (select * from {old}),
            kept as (select * from new where dropped_reason is null),
            had as (select * from old where dropped_reason is null),
            reasons as (select doc_id, min(dropped_reason) as reason from new group by doc_id)
            select 'added' as change, doc_id, source_uri, chars, null as reason
            from kept anti join had using (doc_id)
            union all
            select 'removed', doc_id, source_uri, chars, reason
            from had anti join kept using (doc_id) left join reasons using (doc_id)
            order by change, source_uri, doc_id
            """
        )

    def _index(self, corpus: str, version: int) -> str:
        """The table function that reads every document of a version."""
        paths = self.db.execute(
            "select version, index_path from versions where corpus = ? order by version", [corpus]
        ).fetchall()
        known = dict(paths)
        if version not in known:
            there = ", ".join(map(str, known))
            raise InputError(f"no version {version} of {corpus} (there is: {there})")
        path = str(self.workspace.root.resolve() / known[version]).replace("'", "''")
        return f"read_parquet('{path}')"

    def masked_words(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Words by their length in tokens: how many, and what share the stored masks hide."""
        tokenizer = self.tokenizer(corpus)
        special = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id]
        return self.sql(
            """
            with tokens as (
                select instance_id, input_ids, masked_positions,
                    list_filter(range(len(input_ids)), lambda i: word_starts[i + 1] = '1') as starts
                from instances where corpus = ?),
            words as (
                select unnest(list_zip(starts, list_append(starts[2:], len(input_ids)))) as bounds,
                    input_ids, masked_positions from tokens),
            flagged as (
                select bounds[2] - bounds[1] as length,
                    list_contains(masked_positions, bounds[1]::usmallint) as masked
                from words where not list_contains(?, input_ids[bounds[1] + 1]::integer))
            select least(length, 6) as tokens, count(*) as words, count(*) filter (masked) as masked,
                count(*) filter (masked) / count(*) as share
            from flagged group by all order by tokens
            """,
            [corpus, special],
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

    def documents(self, corpus: str) -> Iterator[tuple[str, str]]:
        """Id and text of every document of the corpus, its sentences joined by line ends."""
        require_version(self.db, corpus)
        cursor = self.db.cursor()
        cursor.execute("select doc_id, text from document_texts where corpus = ?", [corpus])
        while rows := cursor.fetchmany(1000):
            yield from rows

    def sentences(self, corpus: str) -> Iterator[str]:
        """Every sentence of the corpus."""
        for text in self.texts(corpus):
            yield from text.split("\n")

    def sample_instances(self, corpus: str, count: int = 5) -> duckdb.DuckDBPyRelation:
        """Some instances as text, always the same ones: plain, masked, and with their SOP label."""
        tokenizer = self.tokenizer(corpus)
        samples = self.sql(
            "select instance_id, doc_id, input_ids, sop_label, masked_positions, masked_input_ids from "
            "instances "
            "where corpus = ? order by hash(instance_id), instance_id limit ?",
            [corpus, count],
        ).to_arrow_table()
        texts, masked_texts = [], []
        for sample in samples.to_pylist():
            texts.append(tokenizer.decode(sample["input_ids"]))
            masked = list(sample["input_ids"])
            for position, token in zip(sample["masked_positions"], sample["masked_input_ids"], strict=True):
                masked[position] = token
            masked_texts.append(tokenizer.decode(masked))
        columns = {name: samples[name] for name in ("instance_id", "doc_id")}
        columns |= {"text": pa.array(texts, pa.string()), "masked": pa.array(masked_texts, pa.string())}
        return self.db.from_arrow(pa.table({**columns, "sop_label": samples["sop_label"]}))


# the file a document came from, without its place in it
_SOURCE = r"regexp_replace(source_uri, '#[^/]*$', '')"
_IS_HAN = r"regexp_full_match(word, '[\x{4e00}-\x{9fff}]+')"
_WORDS = "with words as (select unnest(flatten(words)) as word from document_texts where corpus = ?)"


def open_workspace(path: Path | str | None = None) -> Statistics:
    """A read-only look at the workspace in a folder; JIXU_WORKSPACE or ./workspace if none is given."""
    return Statistics(Workspace(Path(path) if path else default_workspace()))
