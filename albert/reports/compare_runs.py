"""Runs side by side: the figures of their reports in one table and one page."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown

from albert.evaluation import judge, metric_name
from albert.reports.content import Report
from albert.reports.evaluation_plots import SCORE_UNIT, interval_of
from albert.reports.page import METRICS_FILE, PAGE_FILE, flat, read_report, render_page
from albert.reports.plots import Interval, Plot, intervals
from albert.reports.pretraining import SHOWN, held_out_figures, loss_plots, run_table
from albert.reports.sections import MISSING, Section, Table, counted, gain, spread
from albert.reports.verdict import verdict
from data.errors import InputError
from data.files import write_text

Runs = Mapping[str, Report]  # by a name that is unique in the comparison
_PREFIX = "comparison-"  # of a page's folder
_WIDEST = 30  # characters of a column on the console before its cells are wrapped


def read_runs(folders: Sequence[Path]) -> Runs:
    """Read the reports of the folders. Raises InputError for fewer than two, or if one is not a report."""
    if len(folders) < 2:
        raise InputError(f"{counted(len(folders), 'run')} cannot be compared: name two or more")
    reports = [_read_run(folder) for folder in folders]
    names = [(folder if folder.is_dir() else folder.parent).resolve().name for folder in folders]
    if len(set(names)) < len(names):  # all are numbered, as one may be called like another with a number
        names = [f"{name} ({n})" for n, name in enumerate(names, 1)]
    return dict(zip(names, reports, strict=True))


def _read_run(folder: Path) -> Report:
    """Read a report, and compute differences and verdict again from the outcomes of every run and example."""
    report = read_report(folder)
    try:
        evaluations = tuple(judge(one, stepwise=bool(one.steps)) for one in report.evaluations)
    except (EOFError, IndexError, ValueError, zlib.error):
        raise InputError(f"the outcomes in {folder} are damaged, make the report again") from None
    text = verdict(report.pretraining, evaluations)
    warnings = report.warnings
    if text != report.verdict:
        warnings += (f"metrics.json has another verdict than its outcomes: {report.verdict}",)
    return replace(report, evaluations=evaluations, verdict=text, warnings=warnings)


def metrics_table(runs: Runs) -> Table:
    """A row for each figure that any run has, a column for each run."""
    by_run = [_scores(report) | _training_figures(report) for report in runs.values()]
    names = dict.fromkeys(name for figures in by_run for name in figures)
    rows = [(name, *(figures.get(name, MISSING) for figures in by_run)) for name in names]
    caption = (
        "Scores in points, mean ± half its 95% interval; held-out figures before → after. Only "
        "models of one run share their seeds: a difference between runs has no interval here."
    )
    return Table(caption, ("Figure", *runs), tuple(rows))


def _scores(report: Report) -> dict[str, str]:
    figures = {}
    for comparison in report.evaluations:
        where = f"{comparison.task} {comparison.split}"
        for model in comparison.models:
            for metric, score in model.reported.items():
                figures[f"{where} {metric_name(metric)}: {model.label}"] = spread(score)
        where += f" {metric_name(comparison.metric)}"
        for one in comparison.differences:
            figures[f"{where}: {one.model} against {one.baseline}"] = gain(one)
    return figures


def _training_figures(report: Report) -> dict[str, str]:
    result = report.pretraining
    if result is None:
        return {}
    figures = {}
    for one in held_out_figures(result.history):
        called, _, show, _ = SHOWN[one.metric]
        name = f"held-out {called}, {one.corpus}" if one.corpus else f"held-out {called}"
        figures[name] = f"{show(one.before.value)} → {show(one.after.value)}"
    return figures | {name: figure for name, figure in run_table(result).rows}


def differing_table(runs: Runs) -> Table:
    """Settings and versions that differ between runs, and files and weights of one name."""
    by_run, rows = [_settings(report) for report in runs.values()], []
    for part in dict.fromkeys(part for settings in by_run for part in settings):
        having = [settings[part] for settings in by_run if part in settings]
        for name in dict.fromkeys(name for settings in having for name in settings):
            found = {settings.get(name, MISSING) for settings in having}
            if len(found - {MISSING} if part == "sha256" else found) > 1:
                values = (settings.get(part, {}).get(name, MISSING) for settings in by_run)
                rows.append((f"{part}: {name}", *values))
    caption = (
        "Without settings and versions in which runs of a kind agree, or of parts that only one run has."
    )
    return Table(caption, ("Differs", *runs), tuple(rows), words=tuple(range(len(runs) + 1)))


def _settings(report: Report) -> dict[str, Mapping[str, str]]:
    """Settings by their kind, without the run's name; several of a kind, such as arms, are numbered."""
    kinds = [title.partition(":")[0] for title in report.settings]
    names = (
        kind if kinds.count(kind) == 1 else f"{kind} {kinds[:at].count(kind) + 1}"
        for at, kind in enumerate(kinds)
    )
    settings = dict(zip(names, map(flat, report.settings.values()), strict=True))
    made = {one.corpus: f"version {one.version}, {str(one.shards_sha256)[:8]}" for one in report.corpora}
    sums = {name: digest[:8] for name, digest in report.checksums.items()}
    return {**settings, **({"corpus": made} if made else {}), "version": report.versions, "sha256": sums}


def comparison_sections(runs: Runs) -> list[Section]:
    """Verdicts, figures and settings of the runs."""
    verdicts = tuple((name, report.verdict) for name, report in runs.items())
    caption = "Computed again from every outcome in metrics.json."
    return [
        Section(title="Verdicts", tables=(Table(caption, ("Run", "verdict"), verdicts, (0, 1)),)),
        Section(title="Figures", tables=(metrics_table(runs),), plots=tuple(_plots(runs))),
        Section(title="Settings", tables=(differing_table(runs),)),
    ]


def _plots(runs: Runs) -> list[Plot]:
    rows: dict[str, list[Interval]] = {}
    for name, report in runs.items():
        for one in report.evaluations:
            rows.setdefault(f"{one.task} {one.split} {metric_name(one.metric)}", []).extend(
                interval_of(f"{name}: {model.label}", model.reported[one.metric]) for model in one.models
            )
    histories = {name: one.pretraining.history for name, one in runs.items() if one.pretraining}
    return [
        *(intervals(title, SCORE_UNIT, of_task) for title, of_task in rows.items()),
        *loss_plots("Held-out MLM loss", histories),
    ]


def compare_reports(*runs: Path, output: Path | None = None) -> Path:
    """Write one page and print tables that compare runs. Returns the page's path.

    Pages of comparisons, which `reports/*` names too, are left out.

    Args:
        runs: Folders of reports, or their metrics.json.
        output: Folder of the page; by default beside the first run's report.
    """
    folders = [one for one in runs if not one.name.startswith(_PREFIX) or (one / METRICS_FILE).is_file()]
    compared = read_runs(folders)
    sections = comparison_sections(compared)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in (table for section in sections for table in section.tables if table.rows):
        for part in fitting(table, console.width):
            console.print(Markdown(part.to_markdown()))
    html = render_page(
        title="Runs compared",
        lead=f"{counted(len(compared), 'run')}: {', '.join(compared)}",
        about=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        sections=sections,
        warnings=tuple(f"{name}: {line}" for name, one in compared.items() for line in one.warnings),
    )
    page = (output or _folder_beside(folders)) / PAGE_FILE
    write_text(page, html)
    print(f"page {page}")
    return page


def fitting(table: Table, width: int) -> Iterator[Table]:
    """Divide a table's columns of runs so that a line of the console holds each part, without empty rows."""
    first, *others = (max(map(cell_len, column)) for column in zip(table.columns, *table.rows, strict=True))
    room = max(width - min(first, _WIDEST) - 4, 1)
    step = max(room // (min(max(others), _WIDEST) + 3), 1)
    for at in range(1, len(table.columns), step):
        columns, *rows = ((row[0], *row[at : at + step]) for row in (table.columns, *table.rows))
        rows = [row for row in rows if set(row[1:]) != {MISSING}]
        caption = table.caption if at + step >= len(table.columns) else ""
        yield Table(caption, columns, tuple(rows), table.words)


def _folder_beside(folders: Sequence[Path]) -> Path:
    """Name a folder beside the first run's report, the same one for the same runs."""
    first = folders[0] if folders[0].is_dir() else folders[0].parent
    digest = hashlib.sha256("\n".join(str(folder.resolve()) for folder in folders).encode()).hexdigest()[:8]
    return first.resolve().parent / f"{_PREFIX}{digest}"
