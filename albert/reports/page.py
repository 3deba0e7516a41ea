"""A report as Markdown, as one self-contained HTML page, and as metrics.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import JsonValue

from albert.evaluation import Comparison, evaluation_titles
from albert.reports.content import REPORT, SCHEMA_VERSION, Report, base_titles
from albert.reports.corpus import corpus_section
from albert.reports.evaluation import evaluation_section, protocol, scores_table
from albert.reports.evaluation_plots import contrast_plot
from albert.reports.pretraining import held_out_table, training_section
from albert.reports.sections import Section, Strong, pairs_table
from data.errors import InputError
from data.files import read_json, write_text
from data.options import parse

METRICS_FILE, PAGE_FILE = "metrics.json", "index.html"
_HERE = Path(__file__).parent


def score_tables(evaluations: Sequence[Comparison]) -> list[str]:
    """The scores of each evaluation as Markdown under its title."""
    titled = zip(evaluation_titles(evaluations), evaluations, strict=True)
    return [f"### {title}\n\n{scores_table(one).to_markdown()}" for title, one in titled]


def _held_out_tables(report: Report) -> list[str]:
    trained = [("Pretraining", report.pretraining)] if report.pretraining else []
    trained += zip(base_titles(report.bases), report.bases, strict=True)
    return [f"### {title}\n\n{held_out_table(result).to_markdown()}" for title, result in trained]


def report_markdown(report: Report) -> str:
    """The verdict, the warnings, a table for each evaluation and each training, and the command."""
    warnings = (f"> {line}" for line in report.warnings)
    tables = (*score_tables(report.evaluations), *_held_out_tables(report))
    return "\n\n".join([f"**{report.verdict}**", *warnings, *tables, f"```\n{report.command}\n```"]) + "\n"


def report_text(report: Report) -> str:
    """The same as lines for a person, with how the scores were measured and without the command."""
    scores = zip(score_tables(report.evaluations), report.evaluations, strict=True)
    measured = (f"{table}\n{protocol(one)}\n" for table, one in scores)
    return "\n".join([report.verdict, *report.warnings, "", *_held_out_tables(report), *measured])


def write_report(report: Report, folder: Path) -> Path:
    """Write metrics.json and index.html into `folder`. Returns the page's path."""
    content = REPORT.dump_python(report, mode="json")
    page = render(report)
    text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False)
    write_text(folder / METRICS_FILE, text + "\n")
    write_text(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def read_report(run: Path | str) -> Report:
    """Read a report, given its folder, its page or its metrics.json. Raises InputError if there is none, or
    if it is damaged or of another version.
    """
    run = Path(run)
    path = run.with_name(METRICS_FILE) if run.is_file() else run / METRICS_FILE
    if not path.is_file():
        raise InputError(f"no report in {run}: there is no {path}")
    content = read_json(path)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version}, but this version of jixu reads {SCHEMA_VERSION}: "
            "use the version that wrote it, or make the report again"
        )
    return parse(Report, content, f"{path} is damaged, make the report again")


def render(report: Report) -> str:
    return render_page(
        title=report.title,
        lead=report.verdict,
        warnings=report.warnings,
        about=f"{report.created_at[:16].replace('T', ' ')} UTC · jixu {report.versions.get('jixu', '')}",
        sections=report_sections(report),
    )


def render_page(
    *, title: str, lead: str, about: str, sections: list[Section], warnings: tuple[str, ...]
) -> str:
    """Render sections under a title and a leading sentence."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.tests["strong"] = lambda cell: isinstance(cell, Strong)
    environment.globals["next_number"] = count(1).__next__
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        about=about,
        warnings=warnings,
        sections=sections,
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
    )


def report_sections(report: Report) -> list[Section]:
    """The sections of the parts that exist, in the order of the page."""
    sections = list(map(evaluation_section, report.evaluations, evaluation_titles(report.evaluations)))
    if len(sections) > 1:
        sections.insert(0, Section(title="All verdicts", plots=(contrast_plot(report.evaluations),)))
    if result := report.pretraining:
        title = "Continued pretraining" if result.probe else "Pretraining"
        sections.append(training_section(result, title))
    sections += map(training_section, report.bases, base_titles(report.bases))
    return [*sections, *map(corpus_section, report.corpora), _repeat_section(report)]


def _repeat_section(report: Report) -> Section:
    tables = {
        **{f"Settings: {name}": (("Setting", "value"), flat(one)) for name, one in report.settings.items()},
        "Versions": (("Package", "version"), report.versions),
        "Checksums": (("File", "sha256"), report.checksums),
    }
    details = tuple(
        Section(title=title, tables=(pairs_table(*parts, words=(0, 1)),)) for title, parts in tables.items()
    )
    return Section(title="How to repeat it", code=(report.command,), details=details)


def flat(values: Mapping[str, JsonValue]) -> dict[str, str]:
    """Settings as text, those of a group under dotted names; without the paths of shards, which are many.

    >>> flat({"shards": ["a"], "optimizer": {"warmup_share": 0.1}, "names": None, "mix": [{"name": "law"}]})
    {'optimizer.warmup_share': '0.1', 'names': '', 'mix.1.name': 'law'}
    """
    flattened: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(number): one for number, one in enumerate(value, 1)}
        if isinstance(value, dict):
            flattened |= {f"{name}.{inner}": text for inner, text in flat(value).items()}
        elif name != "shards":
            flattened[name] = "" if value in (None, []) else str(value)
    return flattened
