"""Answer questions about a workspace as DuckDB relations: `.df()`, `.to_arrow_table()`, `.pl()` or more SQL.

>>> statistics = open_workspace("workspace")          # doctest: +SKIP
>>> statistics.funnel("law").df()                     # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.catalog.database import SOURCE_FILE, create_views, parquet, quoted, read_catalog
from data.catalog.versions import Version, never_trained_share, require_version, version_shards
from data.errors import InputError
from data.instances import LENGTH_BIN, MEND, count_row_groups, read_rows, read_shard
from data.tokenization import Tokenizer, find_tokenizer, load_tokenizer
from data.workspace import Workspace, local_folder

if TYPE_CHECKING:
    from datasets import IterableDataset

_IS_HAN = r"regexp_full_match(word, '[\x{4e00}-\x{9fff}]+')"
_WORDS = "with words as (select unnest(flatten(words)) as word from document_texts where corpus = $corpus)"
_IDS = "(select doc_id, unnest(input_ids) as id from instances where corpus = $corpus)"


def _plain(values: Any) -> Any:
    """Turn NumPy's numbers, as a data frame has them, into Python's: DuckDB takes no others."""
    if isinstance(values, dict):
        return dict(zip(values, _plain(values.values()), strict=True))
    return values and [one.item() if isinstance(one, np.generic) else one for one in values]


class Statistics:
    """A read-only view of a workspace as it is now; flows may write to it meanwhile. Use it with `with`.

    `newest` are the versions that corpora end at, to look back at one; by default all versions are there.
    Raises InputError if a corpus lacks its version.
    """

    def __init__(self, workspace: Workspace, newest: Mapping[str, int] | None = None):
        self.workspace = workspace
        self.db = read_catalog(workspace)
        self.db.execute("set python_scan_all_frames = true")  # for the data frames of whoever calls `sql`
        later = []
        for corpus, last in (newest or {}).items():
            later.append(f"corpus = {quoted(corpus)} and version > {self._version(corpus, last).version}")
        if later:
            query = f"from stored.versions where not ({' or '.join(later)})"
            self.db.execute(f"create or replace view versions as {query}")
        self._lost = create_views(self.db, workspace)
        for corpus in sorted(self._lost):
            warnings.warn(f"{self._loss(corpus)}. The views have no rows of it", stacklevel=3)

    def __repr__(self) -> str:
        return f"open_workspace({str(self.workspace.root)!r})"

    def __enter__(self) -> Statistics:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    def sql(
        self, query: str, parameters: list[object] | dict[str, object] | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Run any query over the catalog's tables and views, and data frames by the names of your variables;
        parameters by place (?) or by name ($corpus).
        """
        return self.db.sql(query, params=_plain(parameters))

    def _intact(self, corpus: str) -> str:
        """Return the name of a corpus.

        Raises InputError if there is none, or files of it are gone: its figures would be those of none.
        """
        require_version(self.db, corpus)
        if corpus in self._lost:
            raise InputError(self._loss(corpus))
        return corpus

    def _loss(self, corpus: str) -> str:
        return f"files of {corpus} are gone or damaged in {self.workspace.root}: {MEND}"

    def versions(self) -> duckdb.DuckDBPyRelation:
        """List every version of every corpus, the newest first."""
        return self.sql(
            """
            select corpus, version, parent, documents, characters, words, sentences, instances, tokens, sop,
                created_at
            from versions order by corpus, version desc
            """
        )

    def funnel(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count what went into and came out of each stage of the corpus's current version, and why."""
        return self.sql(
            """
            select step, stage, unit, "in", "out", reason, count from funnel
            where corpus = ? and version = ? order by step, unit desc, reason
            """,
            [corpus, require_version(self.db, corpus).version],
        )

    def dropped(self, corpus: str, each: int | None = None) -> duckdb.DuckDBPyRelation:
        """List the documents that were not used, with place, reason and first characters.

        With `each`, at most as many for each reason, always the same ones.
        """
        numbered = "row_number() over (partition by dropped_reason order by hash(source_uri), doc_id)"
        return self.sql(
            f"""
            select source_uri, dropped_stage, dropped_reason, chars, beginning from documents
            where corpus = $corpus and dropped_reason is not null
            {f"qualify {numbered} <= $each" if each else ""} order by dropped_reason, source_uri, chars
            """,
            {"corpus": self._intact(corpus), **({"each": each} if each else {})},
        )

    def lengths(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count instances by length in tokens, from the shards' histograms."""
        return self.sql(
            f"""
            select (bar - 1) * {LENGTH_BIN} + 1 as tokens_from, bar * {LENGTH_BIN} as tokens_to,
                sum(length_histogram[bar])::bigint as instances
            from (select length_histogram, unnest(range(1, len(length_histogram) + 1)) as bar
                  from version_shards join shards using (corpus, path) where corpus = ? and version = ?)
            group by bar order by bar
            """,
            [corpus, require_version(self.db, corpus).version],
        )

    def words(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """List the most frequent words of two or more Chinese characters."""
        return self.sql(
            f"""
            {_WORDS} select word, count(*) as count from words where len(word) > 1 and {_IS_HAN}
            group by word order by count desc, word limit $limit
            """,
            {"corpus": self._intact(corpus), "limit": limit},
        )

    def word_lengths(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count words of Chinese characters by their length, 6 or more as 6."""
        return self.sql(
            f"""
            {_WORDS} select least(len(word), 6) as characters, count(*) as count from words
            where {_IS_HAN} group by all order by characters
            """,
            {"corpus": self._intact(corpus)},
        )

    def tokens(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """List the most frequent token ids."""
        query = f"select id, count(*) as count from {_IDS} group by id order by count desc, id limit $limit"
        return self.sql(query, {"corpus": self._intact(corpus), "limit": limit})

    def unknown_share(self, corpus: str) -> float:
        """Measure the share of [UNK] among the corpus's tokens, without [CLS] and [SEP]."""
        query = f"select coalesce(avg((id = $unknown)::integer), 0) from {_IDS} where id not in ($cls, $sep)"
        ((share,),) = self.db.execute(query, self.token_parameters(corpus)).fetchall()
        return share

    def token_parameters(self, corpus: str) -> dict[str, object]:
        """Return a corpus and the ids of [UNK], [CLS] and [SEP] as named parameters of a query."""
        tokenizer = self.tokenizer(corpus)
        ids = {"unknown": tokenizer.unknown_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        return {"corpus": self._intact(corpus), **ids}

    def masks(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count what the stored masks put in place of tokens: [MASK], the same token, or another.

        Another is a random token; with the objective macbert, most are of a similar word.
        """
        return self.sql(
            """
            with masked as (
                select unnest(masked_input_ids) as now, unnest(masked_labels) as label
                from instances where corpus = ?)
            select case when now = ? then '[MASK]' when now = label then 'kept' else 'other' end as
            replacement, count(*) as count, count(*) / sum(count(*)) over () as share from masked group by all
            order by count desc
            """,
            [self._intact(corpus), self.tokenizer(corpus).mask_id],
        )

    def source_shares(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count the documents, the dropped among them, and the characters of the others by source file."""
        return self.sql(
            f"""
            select case dropped_reason when 'unreadable_file' then regexp_replace(source_uri, '#[^#]*$', '')
                else {SOURCE_FILE} end as source, count(*) as documents, count(dropped_reason) as dropped,
                coalesce(sum(chars) filter (dropped_reason is null), 0)::bigint as chars
            from documents where corpus = ? group by source order by chars desc, source
            """,
            [self._intact(corpus)],
        )

    def unknown_by_source(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count tokens and the share of [UNK] among them by source file, the worst first.

        An instance that runs across documents (roberta) counts as of its `doc_id`'s.
        """
        return self.sql(
            f"""
            with tokens as (
                select doc_id, count(*) as tokens, count(*) filter (id = $unknown) as unknown
                from {_IDS} where id not in ($cls, $sep) group by doc_id)
            select {SOURCE_FILE} as source, sum(tokens)::bigint as tokens, sum(unknown)::bigint as unknown,
                sum(unknown) / sum(tokens) as unknown_share
            from tokens join documents using (doc_id) where corpus = $corpus and dropped_stage is null
            group by source order by unknown_share desc, source
            """,
            self.token_parameters(corpus),
        )

    def coverage_by_source(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count the vocabulary's tokens that each source file uses, and those that no other file uses."""
        return self.sql(
            f"""
            with used as (
                select distinct {SOURCE_FILE} as source, id
                from {_IDS} join documents using (doc_id)
                where corpus = $corpus and dropped_stage is null),
            shared as (select id, count(*) as sources from used group by id)
            select source, count(*) as tokens, count(*) / $size as share,
                count(*) filter (sources = 1) as only_here
            from used join shared using (id) group by source order by tokens desc, source
            """,
            {"corpus": self._intact(corpus), "size": self.tokenizer(corpus).vocab_size},
        )

    def vocabulary_coverage(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count the vocabulary's tokens that the corpus uses at least once, 10, 100 and 1000 times."""
        return self.sql(
            f"""
            with counted as (select id, count(*) as count from {_IDS} group by id),
            levels as (select unnest([1, 10, 100, 1000]) as at_least)
            select at_least, count(id) as tokens, count(id) / $size as share
            from levels left join counted on count >= at_least group by at_least order by at_least
            """,
            {"corpus": self._intact(corpus), "size": self.tokenizer(corpus).vocab_size},
        )

    def new_words(self, corpus: str, limit: int = 100) -> duckdb.DuckDBPyRelation:
        """List words of the documents that the current version added and of none of its older ones, the most
        frequent first.
        """
        version = require_version(self.db, corpus).version
        return self.sql(
            f"""
            with words as (
                select unnest(flatten(t.words)) as word, first_version
                from document_texts t join documents using (corpus, doc_id)
                where corpus = ? and dropped_reason is null)
            select word, count(*) as count
            from (from words where first_version = ?) anti join (from words where first_version < ?)
                using (word)
            where len(word) > 1 and {_IS_HAN} group by word order by count desc, word limit ?
            """,
            [self._intact(corpus), version, version, limit],
        )

    def duplicates(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """List every repeated document with its place and the place of the document it repeats."""
        return self.sql(
            """
            select d.source_uri, d.dropped_reason as reason, d.chars, kept.source_uri as repeats
            from documents d left join documents kept
                on kept.corpus = d.corpus and kept.doc_id = d.duplicate_of and kept.dropped_reason is null
            where d.corpus = ? and d.duplicate_of is not null order by d.source_uri
            """,
            [self._intact(corpus)],
        )

    def version_changes(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Compare each version of a corpus with the one before it; null if that one was removed."""
        return self.sql(
            """
            with listed as (
                select v.*, coalesce(paths, []) as paths
                from versions v left join (
                    select corpus, version, list(path) as paths from version_shards group by all)
                    using (corpus, version)
                where corpus = ?),
            before as (
                select version as number, documents as documents_before, tokens as tokens_before,
                    paths as paths_before from listed
                union all select null, 0, 0, [])
            select version, parent, created_at, recipe_hash, documents, instances, tokens,
                documents - documents_before as documents_change, tokens - tokens_before as tokens_change,
                len(paths) - len(paths_before) + gone_shards as new_shards, gone_shards
            from listed left join before on parent is not distinct from number, lateral (
                select len(paths_before) - len(list_intersect(paths, paths_before)) as gone_shards)
            order by version
            """,
            [self._intact(corpus)],
        )

    def changed_documents(
        self, corpus: str, newer: int | None = None, older: int | None = None
    ) -> duckdb.DuckDBPyRelation:
        """List documents that only one of two versions has, by default the current one and the last one left
        before it.

        The reason of a removed one says why it is dropped now, and is null if its source no longer has it.
        Raises InputError for a version that does not exist.
        """
        root, new, old = self.workspace.root, self._version(corpus, newer), None
        if older is not None:
            old = self._version(corpus, older)
        elif new.version > 1:
            old = require_version(self.db, corpus, new.version - 1)
        after = parquet([root / new.index_path])
        # in the first version every document is new
        before = parquet([root / old.index_path]) if old else f"{after} where false"
        return self.sql(
            f"""
            with new as (from {after}), kept as (from new where dropped_reason is null),
            had as (from (from {before}) where dropped_reason is null),
            reasons as (
                select doc_id, min(dropped_reason) as reason from new
                where dropped_reason <> 'duplicate' group by doc_id)
            select 'added' as change, doc_id, source_uri, chars, null as reason
            from kept anti join had using (doc_id)
            union all
            select 'removed', doc_id, source_uri, chars, reason
            from had anti join kept using (doc_id) left join reasons using (doc_id)
            order by change, source_uri, doc_id
            """
        )

    def _version(self, corpus: str, version: int | None) -> Version:
        """Return a version, by default the current one. Raises InputError if it does not exist."""
        (version,) = _plain([version])
        found = require_version(self.db, corpus, version if version and version > 0 else None)
        if version not in (None, found.version):  # an earlier one would answer another question
            query = "select version from versions where corpus = ? order by version"
            there = ", ".join(str(number) for (number,) in self.db.execute(query, [corpus]).fetchall())
            raise InputError(f"no version {version} of {corpus} (there is: {there})")
        return found

    def masked_words(self, corpus: str) -> duckdb.DuckDBPyRelation:
        """Count words by their length in tokens, 6 or more as 6, with the share that stored masks hide."""
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
            [self._intact(corpus), special],
        )

    def tokenizer(self, corpus: str) -> Tokenizer:
        """Load the tokenizer that the corpus was made with."""
        return load_tokenizer(find_tokenizer(require_version(self.db, corpus).tokenizer))

    def texts(self, corpus: str, version: int | None = None) -> Iterator[str]:
        """Yield the text of every document of a version, by default the newest, a sentence a line."""
        for shard in version_shards(self.db, self._version(corpus, version)):
            path = self.workspace.root / shard.documents_path
            yield from read_shard(path, columns=["text"])["text"].to_pylist()

    def dataset(self, corpus: str) -> IterableDataset:
        """Open what runs train on, as an IterableDataset of Hugging Face's library and of torch.

        What the rows hold is in docs/shards.md. Raises InputError if the library is missing.
        """
        try:
            from datasets import Features, IterableDataset, Sequence, Value
        except ImportError:
            raise InputError("Hugging Face's library is missing: pip install datasets") from None
        version = require_version(self.db, corpus)
        shards = [self.workspace.root / shard.path for shard in version_shards(self.db, version)]
        # a list is divided among workers and processes
        parts = [(path, group) for path in shards for group in range(count_row_groups(path))]
        columns = Features.from_arrow_schema(pq.read_schema(shards[0]).remove_metadata())
        del columns["side"]
        columns |= {"word_starts": Sequence(Value("bool")), "sop_label": Value("int8")}
        columns["instance_id"] = Value("string")
        arguments = {"parts": parts, "held_out_share": never_trained_share(self.db)}
        return IterableDataset.from_generator(read_rows, features=Features(columns), gen_kwargs=arguments)

    def sample_instances(self, corpus: str, count: int = 5) -> duckdb.DuckDBPyRelation:
        """Show some instances as text, always the same ones: plain, masked, and with their SOP label."""
        tokenizer = self.tokenizer(corpus)
        samples = self.sql(
            """
            select instance_id, doc_id, input_ids as text, list_transform(input_ids, lambda id, i:
                coalesce(masked_input_ids[list_position(masked_positions, i - 1)], id)) as masked, sop_label
            from instances where corpus = ? order by hash(instance_id), instance_id limit ?
            """,
            [self._intact(corpus), count],
        ).to_arrow_table()
        for at, name in ((2, "text"), (3, "masked")):
            texts = [tokenizer.decode(ids) for ids in samples[name].to_pylist()]
            samples = samples.set_column(at, name, pa.array(texts, pa.string()))
        return self.db.from_arrow(samples)


def open_workspace(path: Path | str | None = None, newest: Mapping[str, int] | None = None) -> Statistics:
    """Open a workspace, or a URL's local copy, for reading; by default JIXU_WORKSPACE, or ./workspace."""
    return Statistics(Workspace(local_folder(path).resolve()), newest)
