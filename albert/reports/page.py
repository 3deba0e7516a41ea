"""The report as an HTML page that needs nothing but itself, and metrics.json beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from albert.reports.content import Report, base_titles
from albert.reports.corpus import corpus_section
from albert.reports.evaluation import evaluation_section
from albert.reports.evaluation_facts import evaluation_titles
from albert.reports.sections import Section, Strong, Table
from albert.reports.training import training_section
from data.files import write_text

METRICS_FILE, PAGE_FILE = "metrics.json", "index.html"
_HERE = Path(__file__).parent


def write_report(report: Report, folder: Path) -> Path:
    """Write metrics.json and index.html into `folder`; returns the page's path."""
    content = json.dumps(asdict(report), ensure_ascii=False, indent=2, default=str, allow_nan=False)
    page = render(report)
    write_text(folder / METRICS_FILE, content + "\n")
    write_text(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def render(report: Report) -> str:
    """The page's HTML."""
    return render_page(
        title=report.title,
        lead=report.verdict,
        warnings=report.warnings,
        about=f"{report.created_at[:16].replace('T', ' ')} UTC · jixu {report.versions.get('jixu', '')}",
        sections=report_sections(report),
    )


def render_page(*, title: str, lead: str, about: str, sections: list[Section], warnings: tuple = ()) -> str:
    """A page of sections under a title and a sentence that says it all."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.tests["strong"] = lambda cell: isinstance(cell, Strong)
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        about=about,
        warnings=warnings,
        sections=sections,
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
    )


def report_sections(report: Report) -> list[Section]:
    """The sections of what is there, in the order of the page."""
    sections = [
        evaluation_section(facts, f"evaluation{n}", title)
        for n, (facts, title) in enumerate(
            zip(report.evaluations, evaluation_titles(report.evaluations), strict=True)
        )
    ]
    if facts := report.pretraining:
        title = "Continued pretraining" if facts["probe"] else "Pretraining"
        sections.append(training_section(facts, "pretraining", title))
    sections += [
        training_section(facts, f"base{n}", title)
        for n, (facts, title) in enumerate(zip(report.bases, base_titles(report.bases), strict=True))
    ]
    sections += [corpus_section(facts, f"corpus{n}") for n, facts in enumerate(report.corpora)]
    return [*sections, _repeat_section(report)]


def _repeat_section(report: Report) -> Section:
    details = [
        Section(title=f"Settings: {name}", tables=(_pairs(("Setting", "value"), values),))
        for name, values in report.settings.items()
    ]
    details.append(Section(title="Versions", tables=(_pairs(("Package", "version"), report.versions),)))
    if report.checksums:
        table = _pairs(("File", "sha256"), report.checksums)
        details.append(Section(title="Checksums", tables=(table,)))
    return Section(title="To repeat it", code=(report.command,), details=tuple(details))


def _pairs(names: tuple[str, str], values: Mapping[str, object]) -> Table:
    rows = tuple((str(key), "" if value is None else str(value)) for key, value in values.items())
    return Table("", names, rows, words=(0, 1))
