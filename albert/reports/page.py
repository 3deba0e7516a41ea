"""A report as Markdown, as one self-contained HTML page, and as metrics.json with its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from albert.evaluation import evaluation_titles
from albert.reports.content import Report, base_titles
from albert.reports.corpus import corpus_section
from albert.reports.evaluation import evaluation_section, scores_table
from albert.reports.pretraining import held_out_table, training_section
from albert.reports.sections import Section, Strong, Table
from data.errors import InputError
from data.files import write_text


@dataclass(frozen=True, slots=True)
class NamedTable:
    name: str  # once in a report
    title: str
    table: Table


def report_markdown(report: Report) -> str:
    """The verdict, what a reader must know before it is believed, the main tables, and the command."""
    parts = [f"**{report.verdict}**", *(f"> {line}" for line in report.warnings)]
    for one in main_tables(report):
        parts += [f"### {one.title}", one.table.to_markdown()]
    return "\n\n".join([*parts, f"```\n{report.command}\n```"]) + "\n"


def main_tables(report: Report) -> list[NamedTable]:
    """A table for each evaluation and training of a report, in the page's order."""
    tables = [
        NamedTable(f"evaluation-{n}" if n > 1 else "evaluation", title, scores_table(facts))
        for n, (facts, title) in enumerate(
            zip(report.evaluations, evaluation_titles(report.evaluations), strict=True), 1
        )
    ]
    if report.pretraining:
        tables.append(NamedTable("training", "Pretraining", held_out_table(report.pretraining)))
    return tables + [
        NamedTable(f"base-{n}" if n > 1 else "base", title, held_out_table(facts))
        for n, (facts, title) in enumerate(zip(report.bases, base_titles(report.bases), strict=True), 1)
    ]


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


SCHEMA_FILE = Path(__file__).parent / "metrics.schema.json"


@cache
def metrics_validator() -> Draft202012Validator:
    """Checks values against the schema."""
    return Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def read_metrics(run: Path) -> dict[str, object]:
    """The metrics of a report, given by its folder, its page or metrics.json. Raises InputError where there
    is none, or it is not by the schema.
    """
    path = run / METRICS_FILE if run.is_dir() else run.with_name(METRICS_FILE)
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no report in {run}: there is no {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if (error := best_match(metrics_validator().iter_errors(metrics))) is not None:
        raise InputError(
            f"{path} is not by the schema of this version of jixu ({error.json_path}: "
            f"{error.message[:200]}): make the report again"
        )
    return metrics
