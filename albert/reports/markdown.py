"""The report's verdict and main tables as Markdown and as rows, for places that are not the page, such as
Prefect's artifacts.
"""

from __future__ import annotations

from dataclasses import dataclass

from albert.reports.content import Report, base_titles
from albert.reports.evaluation import scores_table
from albert.reports.evaluation_facts import evaluation_titles
from albert.reports.sections import Table
from albert.reports.training import held_out_table


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
