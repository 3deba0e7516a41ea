"""The deployments of prefect.yaml served by one process (Prefect's `flow.serve`), without a work pool."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import yaml
from prefect import serve
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron

FILE = Path(__file__).parents[2] / "prefect.yaml"


def load(path: Path = FILE) -> list[RunnerDeployment]:
    """The file's deployments, as `prefect.serve` takes them."""
    return [_deployment(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]]


def _deployment(entry: dict[str, object]) -> RunnerDeployment:
    path, _, name = str(entry["entrypoint"]).partition(":")
    flow = getattr(importlib.import_module(f"flows.{Path(path).stem}"), name)
    limit = entry.get("concurrency_limit")
    return flow.to_deployment(
        entry["name"],
        description=entry.get("description"),
        tags=entry.get("tags"),
        parameters=entry.get("parameters"),
        schedules=[Cron(one.pop("cron"), **one) for one in entry.get("schedules", [])],
        concurrency_limit=ConcurrencyLimitConfig(**limit) if limit else None,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m flows.deployments", description=__doc__)
    parser.add_argument("--limit", type=int, default=4, help="runs at the same time at most [%(default)s]")
    serve(*load(), limit=parser.parse_args().limit)
