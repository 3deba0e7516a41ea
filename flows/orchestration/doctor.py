"""doctor: check versions, processor, GPU and Triton, each file of the workspace, and the server."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from data import catalog
from data.cores import cores
from data.errors import InputError
from data.workspace import Workspace, check_room, local_folder
from flows.orchestration.command import set_up_prefect
from flows.orchestration.servers import served_at, server_version

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

PACKAGES = (
    "jixu", "torch", "triton", "prefect", "duckdb", "pyarrow", "numpy", "jieba", "rjieba", "tokenizers"
)  # fmt: skip
ROUNDING = 1e-4  # fp32 LayerNorm of values of about 1 differs by 1e-6 or so on hardware
SCHEDULER_SECONDS = timedelta(minutes=5)  # the scheduler runs each minute, and the runner may be at its limit
Level = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    what: str
    fix: Callable[[], str] | None = None  # repairs it, and returns what it did


ok, note, bad = (partial(Finding, level) for level in get_args(Level))


def doctor(*, fix: bool = False, workspace: str | None = None) -> int:
    """Check the installation, the workspace and the server.

    Args:
        fix: Repair what can be repaired; nothing in use is removed.
        workspace: Folder or URL of the workspace.
    """
    place = Workspace(local_folder(workspace))
    faults = 0
    checks = (check_versions(), check_devices(), check_workspace(place), check_server(place.root))
    for finding in chain.from_iterable(checks):
        print(f"{finding.level:4}  {finding.what}", flush=True)
        if finding.fix:
            print(f"      {finding.fix() if fix else '--fix repairs it'}", flush=True)
        faults += finding.level == "bad" and not (finding.fix and fix)
    return 1 if faults else 0


def check_versions() -> Iterator[Finding]:
    yield ok(f"Python {platform.python_version()} on {platform.platform()}")
    installed = []
    for name in PACKAGES:
        # triton has wheels for Linux only; elsewhere the torch references run
        with suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{name} {importlib.metadata.version(name)}")
    yield ok(", ".join(installed))


def check_devices() -> Iterator[Finding]:
    from albert.runtime import cpu_capability, describe_devices, triton_error

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield ok(f"CPU {platform.machine()}, {cores()} cores, torch uses {cpu_capability()}; {memory:.0f} GiB")
    gpus = describe_devices()
    if not gpus:
        yield note("no GPU: training runs on the CPU, with the kernels' torch references")
        return
    for gpu in gpus:
        yield ok(f"GPU {gpu}")
    try:
        error = triton_error("cuda")
    except Exception as reason:  # whatever Triton, its compiler or the driver raises
        yield bad(
            f"Triton cannot run its kernels: {type(reason).__name__}: {' '.join(str(reason).split())[:200]}; "
            "JIXU_KERNELS=torch does without them"
        )
        return
    level = ok if error < ROUNDING else bad
    yield level(f"a Triton kernel differs from its torch reference by {error:.1e}")


def check_workspace(workspace: Workspace) -> Iterator[Finding]:
    if not workspace.root.exists():
        yield note(f"no workspace {workspace.root} yet: the first command makes it")
        return
    try:
        check_room(workspace.root)
    except InputError as error:
        yield bad(str(error))
        if not workspace.root.is_dir():
            return
    free = shutil.disk_usage(workspace.root).free
    yield ok(f"workspace {workspace.root.resolve()}, {free / 2**30:.1f} GiB free on its disk")
    if not workspace.catalog.is_file() and not workspace.catalog_copy.is_file():
        yield note("no catalog in it yet: jixu refresh-corpus makes one")
        return
    yield from _check_files(workspace)


def _check_files(workspace: Workspace) -> Iterator[Finding]:
    def rebuild(corpus: str) -> str:
        catalog.mark_for_rebuilding(workspace, corpus)
        return f"refresh {corpus} now, with its sources: it is built anew as the next version"

    try:
        health = catalog.examine(workspace)
    except catalog.CatalogLost as error:
        yield bad(str(error), lambda: f"restored {', '.join(catalog.restore(workspace)) or 'nothing'}")
        return
    except InputError as error:
        yield bad(str(error))
        return
    yield ok(f"{health.files} file(s) of its versions checked")
    for corpus, is_current in sorted({(file.corpus, file.is_current) for file in health.damaged}):
        damaged = [file for file in health.damaged if (file.corpus, file.is_current) == (corpus, is_current)]
        first = damaged[0]
        what = (
            f"{len(damaged)} file(s) of {'' if is_current else 'older versions of '}corpus {corpus} are not "
            f"as committed, first: {first.path} ({'gone' if first.is_gone else 'changed'})"
        )
        if is_current:
            yield bad(what, partial(rebuild, corpus))
        else:
            yield note(f"{what}: jixu corpus gc removes versions that no model was trained on")
    if health.busy:
        yield note(f"unused files are not looked for now: {health.busy}")
    if health.garbage and (files := health.garbage.files):
        yield note(
            f"{len(files)} file(s) that no version uses, {health.garbage.bytes:,} bytes, first: {files[0]}",
            lambda: f"removed {len(catalog.collect_garbage(workspace).files)} file(s)",
        )
    yield from check_runs(workspace)


def check_runs(workspace: Workspace) -> Iterator[Finding]:
    """Find runs that the catalog calls running although their process was killed."""
    from flows.orchestration.slots import abandoned_runs

    def end(run: str) -> str:
        catalog.end_killed_run(workspace, run)
        return f"the catalog says now that {run} failed"

    for run in abandoned_runs(workspace):
        yield note(
            f"run {run} is marked as running, but no process trains it: it was killed. Its command resumes "
            "it from its newest checkpoint",
            partial(end, run),
        )


def check_server(workspace: Path) -> Iterator[Finding]:
    url = os.environ.get("PREFECT_API_URL") or served_at(workspace)
    if not url:
        yield note("no PREFECT_API_URL: commands start a server of their own (jixu serve has one)")
        return
    set_up_prefect(workspace)
    try:
        yield ok(f"server {url} answers, Prefect {server_version()}")
    except InputError as error:
        yield bad(str(error))
        return
    yield from check_schedules()


def check_schedules(now: datetime | None = None) -> Iterator[Finding]:
    """Check that the server plans runs of each active schedule, that they start when due and end well."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
            if any(schedule.active and not deployment.paused for schedule in deployment.schedules):
                yield _check_planned_runs(client, deployment, name, now or datetime.now(UTC))
                yield from _check_last_run(client, deployment, name)
            else:
                for schedule in deployment.schedules:
                    yield note(f"schedule {schedule.slug or schedule.id} of {name} is not active")


def _first_run(
    client: SyncPrefectClient, deployment: DeploymentResponse, order: str, *states: str
) -> FlowRun | None:
    """The first in an order of Prefect's of a deployment's runs in some states."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    wanted = FlowRunFilter.model_validate(
        {"deployment_id": {"any_": [deployment.id]}, "state": {"type": {"any_": states}}}
    )
    found = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort(order), limit=1)
    return next(iter(found), None)


def _check_planned_runs(
    client: SyncPrefectClient, deployment: DeploymentResponse, name: str, now: datetime
) -> Finding:
    planned = _first_run(client, deployment, "NEXT_SCHEDULED_START_TIME_ASC", "SCHEDULED")
    due = planned.next_scheduled_start_time if planned else None
    changed = max(one.updated or one.created or now for one in deployment.schedules)
    if due is None and now - changed > SCHEDULER_SECONDS:
        return bad(
            f"{name} has an active schedule, but the server plans no run of it: see server.log for "
            "errors of its scheduler, and install with -c constraints.txt"
        )
    if due and now - due > SCHEDULER_SECONDS:
        late = f"{(now - due).total_seconds() / 60:.0f} minutes"
        return bad(f"a scheduled run of {name} is {late} late: no worker starts it")
    first = f", next run at {due:%Y-%m-%d %H:%M} UTC" if due else ""
    return ok(f"schedule of {name} is active{first}")


def _check_last_run(
    client: SyncPrefectClient, deployment: DeploymentResponse, name: str
) -> Iterator[Finding]:
    """Find a failure after which no run completed; one that was cancelled or dropped does not count."""
    run = _first_run(client, deployment, "END_TIME_DESC", "COMPLETED", "FAILED", "CRASHED")
    if run and run.state and run.end_time and not run.state.is_completed():
        why = " ".join((run.state.message or "without a message").split())[:200]
        yield bad(f"the last run of {name}: {run.state.name}, {run.end_time:%Y-%m-%d %H:%M} UTC, {why}")
