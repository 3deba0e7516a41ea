"""The key tables of a run as Prefect artifacts, and the facts about a corpus that a report tells."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import runtime
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from data.lexicon import Word
from data.refresh import RefreshResult
from data.statistics import Statistics, open_workspace

if TYPE_CHECKING:
    from albert.reports import CorpusFacts, Report


def plain(settings: object) -> dict[str, object]:
    """Settings as JSON can hold them."""
    return json.loads(json.dumps(asdict(settings), default=str))


def repeat_command() -> str:
    """The command that would do this again; for a deployment's run, the parameters it was given."""
    if command := os.environ.get("JIXU_COMMAND"):
        return command
    parameters = runtime.flow_run.parameters or {}
    given = " ".join(f"-p {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in parameters.items())
    return f"prefect deployment run '{runtime.flow_run.flow_name}/default' {given}"


def artifact_key(kind: str, name: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits, dashes. Names of other scripts become a hash.

    >>> artifact_key("funnel", "law")
    'funnel-law'
    """
    plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{kind}-{plain or hashlib.sha256(name.encode()).hexdigest()[:8]}"


def publish_refresh(workspace: Path, result: RefreshResult) -> None:
    """The funnel of the corpus as a table artifact."""
    with open_workspace(workspace) as statistics:
        funnel = statistics.funnel(result.corpus)
        table = [dict(zip(funnel.columns, row, strict=True)) for row in funnel.fetchall()]
    create_table_artifact(
        table,
        key=artifact_key("funnel", result.corpus),
        description=f"{result.corpus} version {result.version}: what went in and out of each stage",
    )


def publish_words(result: RefreshResult, words: list[Word]) -> None:
    """New words as a table artifact, the best first."""
    create_table_artifact(
        [asdict(word) for word in words[:200]],
        key=artifact_key("words", result.corpus),
        description=f"{len(words)} new words of {result.corpus} version {result.version}",
    )


def publish_report(report: Report, page: Path) -> None:
    """Verdict and main tables as Markdown, each table as rows, and a link to the page."""
    from albert.reports import main_tables, report_markdown

    name = page.parent.name
    create_markdown_artifact(report_markdown(report), key=artifact_key("verdict", name))
    create_link_artifact(page.resolve().as_uri(), "report", key=artifact_key("report", name))
    for one in main_tables(report):
        create_table_artifact(
            one.table.to_records(),
            key=artifact_key(one.name, name),
            description=f"{one.title}. {one.table.caption}",
        )


def gather_facts(statistics: Statistics, corpus: str) -> CorpusFacts:
    """What a report tells of the current version of a corpus."""
    from albert.reports import CorpusFacts

    versions = statistics.versions()
    newest = next(
        dict(zip(versions.columns, row, strict=True)) for row in versions.fetchall() if row[0] == corpus
    )
    funnel = statistics.funnel(corpus)
    return CorpusFacts(
        corpus=corpus,
        version=newest["version"],
        totals={
            n: newest[n] for n in ("documents", "characters", "words", "sentences", "instances", "tokens")
        },
        sop=newest["sop"],
        unknown_share=statistics.unknown_share(corpus),
        funnel=[dict(zip(funnel.columns, row, strict=True)) for row in funnel.fetchall()],
        lengths=[(to, count) for _, to, count in statistics.lengths(corpus).fetchall()],
        word_lengths=statistics.word_lengths(corpus).fetchall(),
        top_words=statistics.words(corpus, 12).fetchall(),
        samples=statistics.sample_instances(corpus, 4),
    )
