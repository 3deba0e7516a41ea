"""A benchmark as a command, and its result: a JSON file, and a verdict in one line."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

# quick runs write elsewhere
RESULTS = Path(os.environ.get("JIXU_BENCHMARK_RESULTS") or Path(__file__).parents[1] / "results")


def command(main: Callable[..., object]) -> NoReturn:
    """Run a benchmark's `main`, whose parameters are options of the command line, and exit."""
    from cyclopts import Parameter  # a machine with a GPU has torch and triton alone

    from data.terminal import make_app, run_app

    module = sys.modules[main.__module__]
    app = make_app(f"python -m {module.__spec__.name}", module.__doc__ or "")
    app.default_parameter = Parameter.combine(app.default_parameter, Parameter(consume_multiple=True))
    app.default(main)
    sys.exit(run_app(app))


def machine() -> dict[str, object]:
    """Describe the machine the numbers were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def met(is_met: bool) -> str:
    """Say whether a goal is met."""
    return "met" if is_met else "missed"


def markdown(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    head, *body = (f"| {' | '.join(map(str, line))} |" for line in (titles, *rows))
    return "\n".join([head, "|" + "---|" * len(titles), *body])


def write_result(name: str, verdict: str, result: Mapping[str, object]) -> None:
    """Write benchmarks/results/<name>.json and print the verdict."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {"verdict": verdict, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **result}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(verdict)
