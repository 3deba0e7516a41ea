"""doctor: is all in place? Versions, processor, GPU and Triton, each file of the workspace, the server."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from data.errors import InputError
from data.workspace import Workspace, default_place, local_folder
from flows.orchestration.command import EXIT_USER_ERROR, disk_trouble, set_up_prefect
from flows.orchestration.servers import server_version

PACKAGES = ("torch", "triton", "prefect", "duckdb", "pyarrow", "numpy", "jieba", "rjieba", "tokenizers")
ROUNDING = 1e-4  # fp32 LayerNorm of values of about 1: some 1e-6 on hardware
SCHEDULER_SECONDS = timedelta(minutes=5)  # the scheduler looks each minute; a worker may be at its limit
LITTLE_SPACE, HARDLY_ANY = 2 * 2**30, 2**28  # bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "note", "bad"]
    what: str
    fix: Callable[[], str] | None = None  # does what `--fix` promises, and says what it did


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jixu doctor", description="Check the installation, the workspace and the server."
    )
    parser.add_argument(
        "--fix", action="store_true", help="mend what can be mended: nothing in use is removed"
    )
    parser.add_argument("--workspace", default=default_place(), help="[%(default)s]")
    return parser


def check_versions() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} on {platform.platform()}")
    found, absent = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    yield Finding("ok", ", ".join(found))
    for name in absent:
        # triton has wheels for Linux alone; without it the torch references run
        yield Finding("note" if name == "triton" else "bad", f"{name} is not installed")


def check_devices() -> Iterator[Finding]:
    from albert.runtime import cpu_capability, describe_devices, triton_error

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding(
        "ok",
        f"CPU {platform.machine()}, {os.cpu_count()} cores, torch uses {cpu_capability()}; {memory:.0f} GiB",
    )
    gpus = describe_devices()
    if not gpus:
        yield Finding("note", "no GPU: training runs on the CPU, with the torch references of the kernels")
        return
    for gpu in gpus:
        yield Finding("ok", f"GPU {gpu}")
    try:
        error = triton_error("cuda")
    except Exception as reason:  # whatever Triton, its compiler or the driver raises
        yield Finding(
            "bad",
            f"Triton cannot run its kernels: {type(reason).__name__}: {' '.join(str(reason).split())[:200]}; "
            "JIXU_KERNELS=torch goes without them",
        )
        return
    level = "ok" if error < ROUNDING else "bad"
    yield Finding(level, f"a Triton kernel differs from its torch reference by {error:.1e}")


def check_workspace(workspace: Workspace) -> Iterator[Finding]:
    if not workspace.root.exists():
        yield Finding("note", f"no workspace {workspace.root} yet: the first command makes it")
        return
    if not workspace.root.is_dir():
        yield Finding("bad", f"workspace {workspace.root} is a file: choose another --workspace")
        return
    if not os.access(workspace.root, os.W_OK):
        yield Finding("bad", f"workspace {workspace.root} cannot be written to: choose another --workspace")
    free = shutil.disk_usage(workspace.root).free
    level = "ok" if free > LITTLE_SPACE else "note" if free > HARDLY_ANY else "bad"
    few = "" if level == "ok" else ": a refresh needs room for its corpus once more"
    room = f"{free / 2**30:.1f} GiB free on its disk{few}"
    yield Finding(level, f"workspace {workspace.root.resolve()}, {room}")
    if not workspace.catalog.is_file():
        yield Finding("note", "no catalog in it yet: jixu refresh-corpus makes one")
        return
    yield from _check_files(workspace)


def _check_files(workspace: Workspace) -> Iterator[Finding]:
    from data.catalog import examine, mark_for_rebuilding, remove_orphans

    try:
        health = examine(workspace)
    except InputError as error:
        yield Finding("bad", str(error))
        return
    yield Finding("ok", f"{health.files} file(s) of its versions looked at")
    for corpus in sorted({file.corpus for file in health.damaged}):
        damaged = [file for file in health.damaged if file.corpus == corpus]
        first = damaged[0]
        yield Finding(
            "bad",
            f"{len(damaged)} file(s) of corpus {corpus} are not as committed, first: {first.path} "
            f"({'gone' if first.is_gone else 'changed'})",
            lambda corpus=corpus: _rebuild(workspace, corpus, mark_for_rebuilding),
        )
    if health.orphans:
        yield Finding(
            "note",
            f"{len(health.orphans)} file(s) that no version uses, {health.orphan_bytes:,} bytes, first: "
            f"{health.orphans[0]}",
            lambda: f"removed {remove_orphans(workspace)} file(s)",
        )
    yield from _check_runs(workspace)


def _check_runs(workspace: Workspace) -> Iterator[Finding]:
    from data.catalog import end_killed_run
    from flows.orchestration.slots import left_off

    def end(run: str) -> str:
        end_killed_run(workspace, run)
        return f"the catalog says now that {run} failed"

    for run in left_off(workspace):
        yield Finding(
            "note",
            f"run {run} is called running, but no process trains it: it was killed. Its command goes on from "
            "its newest checkpoint",
            lambda run=run: end(run),
        )


def _rebuild(workspace: Workspace, corpus: str, mark: Callable[[Workspace, Sequence[str]], None]) -> str:
    mark(workspace, [corpus])
    return f"refresh {corpus} now, with its sources: it is built anew as the next version"


def check_server(workspace: Path) -> Iterator[Finding]:
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        yield Finding(
            "note",
            "no PREFECT_API_URL: each command but a refresh starts a server of its own (make serve has one)",
        )
        return
    set_up_prefect(workspace)
    try:
        yield Finding("ok", f"server {url} answers, Prefect {server_version()}")
    except InputError as error:
        yield Finding("bad", str(error))
        return
    yield from check_schedules()


def check_schedules(now: datetime | None = None) -> Iterator[Finding]:
    """Whether the server plans runs of each active schedule, and a worker starts them when they are due."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter, FlowRunFilterState

    now = now or datetime.now(UTC)
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            flow = client.read_flow(deployment.flow_id).name
            name = f"{flow}/{deployment.name}"
            active = [one for one in deployment.schedules if one.active and not deployment.paused]
            if not active:
                for one in deployment.schedules:
                    yield Finding("note", f"schedule {one.slug or one.id} of {name} is not active")
                continue
            planned = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type={"any_": ["SCHEDULED"]})),
                deployment_filter=DeploymentFilter(id={"any_": [deployment.id]}),
            )
            due = sorted(run.next_scheduled_start_time for run in planned)
            changed = max(one.updated or one.created for one in active)
            if not due and now - changed > SCHEDULER_SECONDS:
                yield Finding(
                    "bad",
                    f"{name} has an active schedule, but the server plans no run of it: see server.log for "
                    "errors of its scheduler (SQLAlchemy must be older than 2.1)",
                )
            elif due and now - due[0] > SCHEDULER_SECONDS:
                late = f"{(now - due[0]).total_seconds() / 60:.0f} minutes"
                yield Finding("bad", f"a scheduled run of {name} is {late} late: no worker starts it")
            else:
                first = f", next run at {due[0]:%Y-%m-%d %H:%M} UTC" if due else ""
                yield Finding("ok", f"schedule of {name} is active{first}")


def examine_all(workspace: Workspace) -> Iterator[Finding]:
    """Everything, in the order it is printed."""
    yield from check_versions()
    yield from check_devices()
    yield from check_workspace(workspace)
    yield from check_server(workspace.root)


def main() -> int:
    """Print every finding; returns 1 if something is bad and was not mended."""
    given = make_parser().parse_args()
    left = 0
    try:
        for finding in examine_all(Workspace(local_folder(given.workspace))):
            print(f"{finding.level:4}  {finding.what}", flush=True)
            if finding.fix and given.fix:
                print(f"      {finding.fix()}", flush=True)
            elif finding.fix:
                print("      --fix mends it", flush=True)
            left += finding.level == "bad" and not (finding.fix and given.fix)
    except (InputError, OSError) as error:
        told = str(error) if isinstance(error, InputError) else disk_trouble(error)
        if told is None:
            raise
        print(f"doctor: {told}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
