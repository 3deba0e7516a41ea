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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
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

from albert import reports
from data.catalog import Statistics, lineages, read_catalog, require_version, version_shards, version_sources
from data.errors import masked
from data.files import sha256
from data.instances import sum_counts
from data.refresh import RefreshResult
from data.workspace import Workspace
from flows.orchestration.servers import served_at


def repeat_command() -> str:
    """Return the command that does the same again; of a deployment's run, with its parameters."""
    if command := os.environ.get("JIXU_COMMAND"):
        return command
    flow_run = FlowRunContext.get()
    if flow_run is None or flow_run.flow is None:  # called as a plain function
        return masked(shlex.join(["python", *sys.argv]))
    defaults = inspect.signature(flow_run.flow.fn).parameters
    given = to_jsonable_python(flow_run.parameters or {})  # a deployment's run has what was sent
    options = " ".join(
        f"-p {shlex.quote(f'{name}={json.dumps(value, ensure_ascii=False)}')}"
        for name, value in given.items()
        if value != to_jsonable_python(defaults[name].default, fallback=str)
    )
    return masked(f"prefect deployment run '{flow_run.flow.name}/default' {options}")


def file_checksums(*paths: Path | str) -> dict[str, str]:
    """Return the sha256 of each file by its path."""
    return {str(path): sha256(Path(path)) for path in paths}


def artifact_key(kind: str, name: str) -> str:
    """A key as Prefect wants it: lower-case letters, digits, dashes; a name of another script has its hash.

    >>> artifact_key("funnel", "law"), artifact_key("funnel", "法律2024")
    ('funnel-law', 'funnel-2024-d18b4ca1')
    """
    digest = "" if name.isascii() else hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub("[^a-z0-9]+", "-", f"{kind}-{name}-{digest}".lower()).strip("-")


def begin_progress(name: str, description: str) -> Callable[[float], None]:
    """Show a progress bar on the run's page; returns a function that moves it to a share from 0 to 1."""
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


def publish_table(kind: str, name: str, rows: Iterable[Mapping[str, object]], description: str) -> None:
    """Rows as a table artifact on the run's page."""
    create_table_artifact(list(map(dict, rows)), key=artifact_key(kind, name), description=description)


def publish_refresh(workspace: Workspace, result: RefreshResult) -> None:
    """The funnel of a corpus, some documents it dropped, and what the gates before the commit measured."""
    version = f"{result.corpus} version {result.version}"
    with Statistics(workspace) as statistics:
        rows = statistics.funnel(result.corpus).to_arrow_table().to_pylist()
        dropped = statistics.dropped(result.corpus, 3).to_arrow_table().to_pylist()
    publish_table("funnel", result.corpus, rows, f"{version}: what went in and out of each stage")
    if dropped:
        publish_table("dropped", result.corpus, dropped, f"{version}: up to three documents for each reason")
    publish_table(
        "gates", result.corpus, map(asdict, result.gates), f"{version}: each value is within its bounds"
    )


@dataclass(frozen=True, slots=True)
class Reported:
    """The outcome of a job that ends with a report."""

    report: reports.Report
    page: Path
    kept: tuple[str, ...]  # a line for each fine-tuned model that was kept


def describe_report(outcome: Reported) -> str:
    """What a person wants to know of the outcome, and where the page is."""
    text = reports.report_text(outcome.report)
    return "\n".join([text, *outcome.kept, f"report {outcome.page.resolve()}"])


def publish_report(report: reports.Report, folder: Path, kept: Sequence[str] = ()) -> Reported:
    """Write a report; show verdict and main tables as Markdown, and where the page is."""
    page, name = reports.write_report(report, folder), folder.name
    create_markdown_artifact(
        reports.report_markdown(report), key=artifact_key("verdict", name), description=report.title
    )
    key, place = artifact_key("report", name), page.resolve()
    if api := served_at(folder.parents[1]):
        address = f"{api.removesuffix('api')}reports/{quote(name)}/{page.name}"
        create_link_artifact(address, "report", key=key, description=f"The whole report, {place}")
    else:  # browsers follow no link from a server's page to a file
        create_markdown_artifact(f"`{place}`", key=key, description="The whole report, on the run's machine")
    return Reported(report, page, tuple(kept))


def gather_facts(
    workspace: Workspace, corpora: Iterable[str], checkpoint: Path | None = None
) -> list[reports.CorpusFacts]:
    """Gather the facts that a report shows of each corpus: of the version that a checkpoint was trained on,
    else of the current one.
    """
    newest = {}
    if checkpoint:
        with read_catalog(workspace) as db:
            behind = lineages(db, workspace, checkpoint)
            # of two versions the later one, which comes last; a corpus may have been removed and made anew
            read = sorted((one.name, one.version) for run in behind for one in run.corpora if one.version)
            newest = {name: require_version(db, name, version).version for name, version in read}
    with Statistics(workspace, newest) as statistics:
        return [_facts(statistics, corpus) for corpus in corpora]


def _facts(statistics: Statistics, corpus: str) -> reports.CorpusFacts:
    version = require_version(statistics.db, corpus)
    shards = version_shards(statistics.db, version)
    digests = "".join(shard.sha256 for shard in shards)
    funnel = statistics.funnel(corpus).project('stage, unit, "in", "out", reason, count')
    samples = statistics.sample_instances(corpus, 4).project("text, masked, sop_label, doc_id")
    uris = [source.uri for source in version_sources(statistics.db, version)]
    names = [masked(uri) if "://" in uri else Path(uri).name for uri in uris[:5]]
    return reports.CorpusFacts(
        corpus=corpus,
        version=version.version,
        totals=sum_counts(shards),
        sop=version.sop,
        unknown_share=statistics.unknown_share(corpus),
        funnel=tuple(reports.FunnelRow(*row) for row in funnel.fetchall()),
        lengths=tuple((to, count) for _, to, count in statistics.lengths(corpus).fetchall()),
        word_lengths=tuple(statistics.word_lengths(corpus).fetchall()),
        top_words=tuple(statistics.words(corpus, 12).fetchall()),
        samples=tuple(reports.SampleInstance(*row) for row in samples.fetchall()),
        sources=(*names, f"{len(uris) - 5:,} more") if len(uris) > 5 else tuple(names),
        recipe_hash=version.recipe_hash,
        shards_sha256=hashlib.sha256(digests.encode()).hexdigest(),
    )
