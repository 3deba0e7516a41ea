"""Runs side by side: the figures of their reports in one table and one page."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from albert.evaluation import label_of, metric_name, reported
from albert.reports.evaluation_plots import score_interval
from albert.reports.page import PAGE_FILE, read_metrics, render_page
from albert.reports.plots import Interval, Line, Plot, curves, intervals
from albert.reports.pretraining import first_and_last, held_out_corpora, key_of
from albert.reports.sections import (
    MISSING,
    Facts,
    Section,
    Table,
    change,
    counted,
    decimal,
    number,
    percent,
    spread,
)
from data.errors import InputError
from data.files import write_text


@dataclass(frozen=True, slots=True)
class Run:
    """A report by the name it has in a comparison."""

    name: str
    metrics: Facts


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The reports of the folders. Raises InputError for fewer than two, or for one that is none."""
    if len(folders) < 2:
        raise InputError("one run is not compared with anything: name two or more")
    metrics = [read_metrics(folder) for folder in folders]
    names = [(folder if folder.is_dir() else folder.parent).resolve().name for folder in folders]
    return [
        Run(name if names.count(name) == 1 else f"{name} ({n})", facts)
        for n, (name, facts) in enumerate(zip(names, metrics, strict=True), 1)
    ]


def metrics_table(runs: Sequence[Run]) -> Table:
    """A row for each figure that some run has, a column for each run."""
    rows = []
    for kind in (_scores, _training_figures):
        figures = [kind(run.metrics) for run in runs]
        names = dict.fromkeys(name for found in figures for name in found)
        rows += [(name, *(found.get(name, MISSING) for found in figures)) for name in names]
    caption = (
        "Scores in points, mean ± standard deviation over the seeds; held-out figures before → after. Only "
        "models of one run share their seeds: a difference between runs has no interval here."
    )
    return Table(caption, ("Figure", *(run.name for run in runs)), tuple(rows))


def _scores(metrics: Facts) -> dict[str, str]:
    figures = {}
    for facts in metrics["evaluations"]:
        for model in facts["models"]:
            for metric, score in reported(model).items():
                name = f"{facts['task']} {facts['split']} {metric_name(metric)}: {label_of(model)}"
                figures[name] = spread(score)
        for one in facts["differences"]:
            name = f"{facts['task']} {facts['split']}: {one['model']} against {one['baseline']}"
            ends = "" if one["low"] is None else f" ({change(one['low'])} to {change(one['high'])})"
            figures[name] = change(one["mean"]) + ends
    return figures


def _training_figures(metrics: Facts) -> dict[str, str]:
    facts = metrics["pretraining"]
    if facts is None:
        return {}
    figures = {}
    for corpus in held_out_corpora(facts["history"]):
        for metric, called, show in (
            ("held_out_mlm_loss", "held-out MLM loss", decimal),
            ("held_out_mlm_accuracy", "held-out MLM accuracy", percent),
            ("held_out_sop_accuracy", "held-out sentence-order accuracy", percent),
        ):
            if ends := first_and_last(facts["history"], key_of(metric, corpus)):
                figures[f"{called}, {corpus}" if corpus else called] = " → ".join(map(show, ends))
    return figures | {
        "steps": number(facts["steps"]),
        "tokens": number(facts["tokens"]),
        "tokens a second": number(facts["tokens_per_second"]),
        "parameters": number(facts["parameters"]),
        "peak learning rate": f"{facts['learning_rate']:.2g}",
    }


def differing_table(runs: Sequence[Run]) -> Table:
    """Settings and versions that are not the same in every run."""
    by_part = [_settings(run.metrics) for run in runs]
    shared = {part for part, n in Counter(part for one in by_part for part in one).items() if n > 1}
    flat = [
        {
            f"{part}: {name}": str(value)
            for part, values in one.items()
            if part in shared
            for name, value in values.items()
        }
        for one in by_part
    ]
    names = dict.fromkeys(name for values in flat for name in values)
    rows = tuple(
        (name, *(values.get(name, MISSING) for values in flat))
        for name in names
        if len({values.get(name) for values in flat}) > 1
    )
    words = tuple(range(len(runs) + 1))
    return Table(
        "Left out: settings and versions that are the same everywhere, and those of what one run alone did.",
        ("Differs", *(run.name for run in runs)),
        rows,
        words,
    )


def _settings(metrics: Facts) -> dict[str, Facts]:
    """By kind: a run's name is in its settings' title. What there is several of, such as arms, by number."""
    kinds = Counter(title.partition(":")[0] for title in metrics["settings"])
    seen: Counter[str] = Counter()
    found = {}
    for title, values in metrics["settings"].items():
        kind = title.partition(":")[0]
        seen[kind] += 1
        found[f"{kind} {seen[kind]}" if kinds[kind] > 1 else kind] = values
    return {**found, "version": metrics["versions"]}


def comparison_page(runs: Sequence[Run]) -> str:
    """One HTML page of the runs."""
    table, differing = metrics_table(runs), differing_table(runs)
    verdicts = Table(
        "", ("Run", "verdict"), tuple((run.name, run.metrics["verdict"]) for run in runs), (0, 1)
    )
    sections = [
        Section(title="Verdicts", tables=(verdicts,)),
        Section(title="Figures", tables=(table,) if table.rows else (), plots=tuple(_plots(runs))),
        *([Section(title="Settings", tables=(differing,))] if differing.rows else []),
    ]
    warnings = tuple(f"{run.name}: {line}" for run in runs for line in run.metrics["warnings"])
    return render_page(
        title="Runs compared",
        lead=f"{counted(len(runs), 'run')}: {', '.join(run.name for run in runs)}",
        about=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        sections=sections,
        warnings=warnings,
    )


def write_comparison(runs: Sequence[Run], folder: Path) -> Path:
    """Write the page into a folder; returns its path."""
    write_text(folder / PAGE_FILE, comparison_page(runs))
    return folder / PAGE_FILE


def _plots(runs: Sequence[Run]) -> list[Plot]:
    plots = []
    tasks = dict.fromkeys(
        (f["task"], f["split"], f["metric"]) for run in runs for f in run.metrics["evaluations"]
    )
    for n, (task, split, metric) in enumerate(tasks):
        rows = _score_rows(runs, (task, split, metric))
        unit = "points: each seed, mean ± standard deviation"
        plots.append(intervals(f"scores{n}", f"{task} {split} {metric_name(metric)}", unit, rows))
    trained = [run for run in runs if run.metrics["pretraining"]]
    for n, corpus in enumerate(sorted({c for run in trained for c in held_out_corpora(_history(run))})):
        key = key_of("held_out_mlm_loss", corpus)
        lines = [Line(run.name, [(r["step"], r[key]) for r in _history(run) if key in r]) for run in trained]
        title = "Held-out MLM loss" + (f", {corpus}" if corpus else "")
        plots.append(curves(f"loss{n}", title, "nats, lower is better", lines))
    return plots


def _history(run: Run) -> Sequence[Facts]:
    return run.metrics["pretraining"]["history"]


def _score_rows(runs: Sequence[Run], evaluation: tuple[str, str, str]) -> list[Interval]:
    rows = []
    for run in runs:
        for facts in run.metrics["evaluations"]:
            if (facts["task"], facts["split"], facts["metric"]) != evaluation:
                continue
            for model in facts["models"]:
                label = f"{run.name}: {label_of(model)}"
                rows.append(score_interval(label, reported(model)[facts["metric"]]))
    return rows


def print_table(table: Table, console: Console) -> None:
    """A table in a terminal, as wide as that."""
    shown = TerminalTable(box=None, pad_edge=False, header_style="bold")
    for n, column in enumerate(table.columns):
        shown.add_column(Text(column), justify="left" if n in table.words else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    console.print(shown)


def compare_reports(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Print tables that compare runs, and write a page; returns the page."""
    runs = read_runs(folders)
    console = Console(width=None if sys.stdout.isatty() else 200, soft_wrap=False)
    for table in (metrics_table(runs), differing_table(runs)):
        if table.rows:
            print_table(table, console)
            console.print()
    return write_comparison(runs, output or _folder_beside(folders))


def _folder_beside(folders: Sequence[Path]) -> Path:
    """A folder beside the first run's, of the same name for the same runs."""
    first = folders[0] if folders[0].is_dir() else folders[0].parent
    digest = hashlib.sha256("\n".join(str(folder.resolve()) for folder in folders).encode()).hexdigest()[:8]
    return first.resolve().parent / f"comparison-{digest}"
