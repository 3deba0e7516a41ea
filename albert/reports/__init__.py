"""The report of a run: one self-contained HTML page, and the same as metrics.json beside it."""

from albert.reports.content import CorpusFacts, Report, build_report
from albert.reports.page import write_report

__all__ = ["CorpusFacts", "Report", "build_report", "write_report"]
