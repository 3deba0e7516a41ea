"""`python -m albert.reports`: compare the reports of runs, or print the schema of metrics.json."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from albert.reports.comparing import differing_table, metrics_table, print_table, read_runs, write_comparison
from albert.reports.schema import SCHEMA_FILE
from data.records import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(prog="python -m albert.reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="one page and a table that compare runs")
    compare.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a report, or its metrics.json"
    )
    compare.add_argument("--output", type=Path, help="folder of the page [beside the first run's report]")
    commands.add_parser("schema", help="print the JSON schema of metrics.json")
    options = parser.parse_args(arguments)
    if options.command == "schema":
        print(SCHEMA_FILE.read_text(encoding="utf-8"), end="")
        return 0
    try:
        print(f"page {_compare(options.runs, options.output)}")
    except InputError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(folders: Sequence[Path], output: Path | None) -> Path:
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


if __name__ == "__main__":
    raise SystemExit(main())
