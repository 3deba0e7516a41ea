"""The report of a run: one self-contained HTML page, and the same as metrics.json beside it."""

from albert.reports.content import Report, build_report
from albert.reports.corpus import CorpusFacts
from albert.reports.markdown import main_tables, report_markdown
from albert.reports.page import write_report

__all__ = ["CorpusFacts", "Report", "build_report", "main_tables", "report_markdown", "write_report"]
