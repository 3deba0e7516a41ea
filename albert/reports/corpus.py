"""The section on a corpus: its size, what was dropped and why, and what it looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from albert.reports.plots import Plot, columns
from albert.reports.sections import MISSING, Passage, Section, Table, number, pairs_table

_ORDER: dict[int | None, str] = {0: "in order", 1: "swapped"}


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """What went in and out of a stage, in one unit, and how much of it changed for one reason."""

    stage: str
    unit: str  # documents or characters
    taken_in: int
    passed_on: int
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True)
class SampleInstance:
    """An instance as text."""

    text: str
    masked: str  # the same with its masks
    sop_label: int | None  # 0: in order, 1: swapped, else a single segment
    doc_id: str


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """A corpus version. The caller reads it from the catalog, which this package cannot import."""

    corpus: str
    version: int
    totals: Mapping[str, int]  # documents, characters, words, sentences, instances, tokens
    sop: bool
    unknown_share: float  # share of [UNK] among the tokens
    funnel: tuple[FunnelRow, ...]
    lengths: tuple[tuple[int, int], ...]  # (longest of the bar in tokens, instances)
    word_lengths: tuple[tuple[int, int], ...]  # (characters, words); the last bar holds longer words too
    top_words: tuple[tuple[str, int], ...]  # (word, occurrences)
    samples: tuple[SampleInstance, ...]
    sources: tuple[str, ...] = ()  # the first URLs or names of files, and how many more there are
    recipe_hash: str | None = None  # of the settings that the corpus was made with
    shards_sha256: str | None = None  # of the checksums of the version's shards, in order


def corpus_section(facts: CorpusFacts) -> Section:
    order = "on" if facts.sop else "off: it was switched off, or the objective or the documents have no order"
    note = f"[UNK] is {100 * facts.unknown_share:.2f}% of the tokens. Sentence-order prediction is {order}."
    if facts.recipe_hash:
        note += f" Made by the recipe {facts.recipe_hash}."
    totals = Table("", tuple(facts.totals), (tuple(map(number, facts.totals.values())),), words=())
    words = {word: number(count) for word, count in facts.top_words[:10]}
    orders = (_ORDER.get(one.sop_label, "single segment") for one in facts.samples)
    passages = (
        Passage(one.text, f"{one.masked}\n{order}, document {one.doc_id}")
        for one, order in zip(facts.samples, orders, strict=True)
    )
    return Section(
        title=f"Corpus: {facts.corpus}, version {facts.version}",
        notes=(note,),
        tables=(totals, funnel_table(facts), pairs_table(("Most frequent words", "occurrences"), words)),
        plots=tuple(_plots(facts)),
        details=(Section(title="Sample instances", passages=tuple(passages)),),
    )


def funnel_table(facts: CorpusFacts) -> Table:
    """A row for each stage: what went in and out, and what was lost for which reason."""
    rows = []
    for stage in dict.fromkeys(row.stage for row in facts.funnel):
        parts = [row for row in facts.funnel if row.stage == stage]
        amounts = []
        for unit in ("documents", "characters"):
            first = next((row for row in parts if row.unit == unit), None)
            amounts += [number(first.taken_in), number(first.passed_on)] if first else [MISSING, MISSING]
        why = ", ".join(_reason(row) for row in parts if row.reason)
        rows.append((stage.replace("_", " "), *amounts, why))
    head = ("Stage", "documents in", "out", "characters in", "out", "lost or changed, and why")
    return Table("What went in and out of each stage.", head, tuple(rows), words=(0, 5))


def _reason(row: FunnelRow) -> str:
    """
    >>> _reason(FunnelRow("filter", "documents", 40, 35, "too_short", 5))
    '5 documents too short'
    >>> _reason(FunnelRow("read", "files_read_as", 0, 0, "document", 1))
    '1 file read as document'
    """
    unit = re.sub("^([a-z]+)s(?=_|$)", r"\1", row.unit) if row.count == 1 else row.unit
    what = f"{row.reason}" if unit == "removed" else f"{unit} {row.reason}"  # removed_url
    return f"{number(row.count)} {what}".replace("_", " ")


def _plots(facts: CorpusFacts) -> list[Plot]:
    lengths = [(f"{to:,}", count) for to, count in facts.lengths]
    plots = [columns("Instances by length", "instances", lengths, x_label="tokens, up to")]
    if facts.word_lengths:  # of Chinese words
        bars = [(f"{n} or more" if n >= 6 else str(n), count) for n, count in facts.word_lengths]
        plots.append(columns("Words by length", "words", bars, x_label="characters"))
    return plots
