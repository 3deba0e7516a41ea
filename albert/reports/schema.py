"""The published schema of metrics.json (JSON Schema, draft 2020-12), and reading such files by it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from albert.reports.page import METRICS_FILE
from data.records import InputError

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
