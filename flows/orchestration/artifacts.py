"""The key tables of a run as Prefect artifacts, and the facts about a corpus that a report tells."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from httpx import HTTPError
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext
from pydantic_core import to_jsonable_python

from data.catalog import Drift, Statistics, open_workspace
from data.errors import masked
from data.files import sha256
from data.refresh import Gate, RefreshResult
from data.segmentation import Word
from data.tokenization import is_han
from flows.orchestration.servers import served_at

if TYPE_CHECKING:
    from albert.reports import CorpusFacts, Report


def plain(settings: object) -> dict[str, Any]:
    """Settings as JSON can hold them."""
    return to_jsonable_python(settings)


def repeat_command() -> str:
    """The command that would do this again; for a deployment's run, with what it was given."""
    if command := os.environ.get("JIXU_COMMAND"):
        return command
    flow_run = FlowRunContext.get()
    if flow_run is None or flow_run.flow is None:  # called as a plain function
        return masked(shlex.join(["python", *sys.argv]))
    defaults = inspect.signature(flow_run.flow.fn).parameters
    given = " ".join(
        f"-p {shlex.quote(f'{name}={json.dumps(to_jsonable_python(value), ensure_ascii=False)}')}"
        for name, value in (flow_run.parameters or {}).items()
        if value != defaults[name].default
    )
    return masked(f"prefect deployment run '{flow_run.flow.name}/default' {given}")


def file_checksums(*paths: Path | str | None) -> dict[str, str]:
    """sha256 by file, of those that are given."""
    return {str(path): sha256(Path(path)) for path in paths if path}


def artifact_key(kind: str, name: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits, dashes. Names of other scripts become a hash.

    >>> artifact_key("funnel", "law")
    'funnel-law'
    """
    plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{kind}-{plain or hashlib.sha256(name.encode()).hexdigest()[:8]}"


def begin_progress(name: str, description: str) -> Callable[[float], None]:
    """A bar on the run's page; returns what moves it, to a share of the work from 0 to 1."""
    artifact: Any = create_progress_artifact(0.0, artifact_key("progress", name), description)
    shown, at = 0, time.monotonic()

    def move(done: float) -> None:
        nonlocal shown, at
        percent, now = int(100 * done), time.monotonic()
        # a call of the server for each percent and five seconds at most, however many parts the work has
        if percent > shown and (percent == 100 or now - at >= 5):
            shown, at = percent, now
            # work goes on while the server is away
            with suppress(HTTPError):
                update_progress_artifact(artifact, float(shown))

    return move


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


def publish_gates(result: RefreshResult, gates: Sequence[Gate]) -> None:
    """What the gates before the commit measured, as a table artifact."""
    create_table_artifact(
        [asdict(gate) for gate in gates],
        key=artifact_key("gates", result.corpus),
        description=f"{result.corpus} version {result.version}: each value is within its bounds",
    )


def publish_drift(result: RefreshResult, drift: Drift) -> None:
    """How far the added documents are from the older ones, as a table artifact."""
    create_table_artifact(
        drift.rows(),
        key=artifact_key("drift", result.corpus),
        description=f"{result.corpus} version {result.version}: its new documents against those before",
    )


def publish_words(result: RefreshResult, words: list[Word]) -> None:
    """New words as a table artifact, the best first."""
    create_table_artifact(
        [asdict(word) for word in words[:200]],
        key=artifact_key("words", result.corpus),
        description=f"{len(words)} new words of {result.corpus} version {result.version}",
    )


def publish_vocabulary(name: str, description: str, entries: Sequence[str]) -> None:
    """What the entries of a vocabulary are, as a table artifact with the first of each kind."""
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), []).append(entry)
    create_table_artifact(
        [
            {"entries": kind, "count": len(found), "first": " ".join(found[:20])}
            for kind, found in kinds.items()
        ],
        key=artifact_key("vocabulary", name),
        description=description,
    )


def _kind(entry: str) -> str:
    text = entry.removeprefix("##").removeprefix("▁")
    if text and all(map(is_han, text)):
        return "one Chinese character" if len(text) == 1 else "several Chinese characters"
    return "special tokens, Latin, digits, marks"


def publish_report(report: Report, page: Path) -> None:
    """Verdict and main tables as Markdown, each table as rows, and where the page is."""
    from albert.reports import main_tables, report_markdown

    name = page.parent.name
    create_markdown_artifact(
        report_markdown(report), key=artifact_key("verdict", name), description=report.title
    )
    key, place = artifact_key("report", name), page.resolve()
    if api := served_at(page.parents[2]):
        address = f"{api.removesuffix('api')}reports/{quote(name)}/{page.name}"
        create_link_artifact(address, "report", key=key, description=f"The whole report, {place}")
    else:  # browsers follow no link from a server's page to a file
        create_markdown_artifact(f"`{place}`", key=key, description="The whole report, on the run's machine")
    for one in main_tables(report):
        create_table_artifact(
            one.table.to_records(),
            key=artifact_key(one.name, name),
            description=f"{one.title}. {one.table.caption}",
        )


def gather_facts(statistics: Statistics, corpus: str) -> CorpusFacts:
    """Gather the facts that a report shows of the current version of a corpus."""
    from albert.reports import CorpusFacts, FunnelRow, SampleInstance

    versions = statistics.versions()
    newest = next(
        dict(zip(versions.columns, row, strict=True)) for row in versions.fetchall() if row[0] == corpus
    )
    funnel = statistics.funnel(corpus).project('stage, unit, "in", "out", reason, count')
    samples = statistics.sample_instances(corpus, 4).project("text, masked, sop_label, doc_id")
    ((recipe_hash,),) = statistics.sql(
        "select recipe_hash from versions where corpus = ? and version = ?", [corpus, newest["version"]]
    ).fetchall()
    shards = statistics.sql(
        "select sha256 from version_shards join shards using (corpus, path) where corpus = ? and version = ? "
        "order by position",
        [corpus, newest["version"]],
    ).fetchall()
    return CorpusFacts(
        corpus=corpus,
        version=newest["version"],
        totals={
            n: newest[n] for n in ("documents", "characters", "words", "sentences", "instances", "tokens")
        },
        sop=newest["sop"],
        unknown_share=statistics.unknown_share(corpus),
        funnel=tuple(FunnelRow(*row) for row in funnel.fetchall()),
        lengths=tuple((to, count) for _, to, count in statistics.lengths(corpus).fetchall()),
        word_lengths=tuple(statistics.word_lengths(corpus).fetchall()),
        top_words=tuple(statistics.words(corpus, 12).fetchall()),
        samples=tuple(SampleInstance(*row) for row in samples.fetchall()),
        recipe_hash=recipe_hash,
        shards_sha256=hashlib.sha256("".join(checksum for (checksum,) in shards).encode()).hexdigest(),
    )
