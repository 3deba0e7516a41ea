"""Rows of the catalog about pretraining runs, their checkpoints, and evaluations."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from pydantic_core import to_jsonable_python

from data.catalog.database import write_catalog
from data.catalog.versions import insert
from data.errors import InputError
from data.files import read_json
from data.workspace import MADE_FROM_FILE, Workspace


def newest_checkpoint(db: duckdb.DuckDBPyConnection, corpus: str) -> str | None:
    """Find the last checkpoint of the last completed run on a corpus; its path in the workspace, or None."""
    rows = db.execute(
        """
        select path from checkpoints join pretraining_runs using (run)
        where corpus = ? and status = 'completed' order by finished_at desc, step desc limit 1
        """,
        [corpus],
    ).fetchall()
    return rows[0][0] if rows else None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """What the catalog keeps of a checkpoint."""

    step: int
    path: str  # relative to the workspace
    sha256: str
    mlm_loss: float | None = None
    mlm_accuracy: float | None = None
    sop_accuracy: float | None = None


def record_run(
    workspace: Workspace,
    *,
    run: str,
    corpus: str,
    version: int,
    init: str,
    settings: object,
    status: str,
    steps: int,
    tokens: int,
    metrics: Mapping[str, object],
    checkpoints: Sequence[CheckpointRow],
) -> None:
    """Record a pretraining run and its checkpoints, replacing older rows about it.

    `status`: running, completed, interrupted (asked to stop), failed or diverged. `metrics` are those of the
    newest evaluation, and for the last two the reason as "error".
    """
    row = {"run": run, "corpus": corpus, "version": version, "init": init, "status": status}
    row |= {"steps": steps, "tokens": tokens, "metrics": json.dumps(metrics, ensure_ascii=False)}
    row |= {"settings": json.dumps(to_jsonable_python(settings), ensure_ascii=False)}
    with write_catalog(workspace) as db:
        # the same command again finds it finished at these steps
        # as text, since Python does not know every time zone that DuckDB knows
        query = "select finished_at::varchar from pretraining_runs where run = ? and steps = ?"
        before = db.execute(query, [run, steps]).fetchall()
        now = datetime.now(UTC) if status == "completed" else None
        row["finished_at"] = (before and before[0][0]) or now
        insert(db, "pretraining_runs", [row], "insert or replace")
        steps_left = [checkpoint.step for checkpoint in checkpoints]
        gone = "delete from checkpoints where run = ? and not list_contains(?::integer[], step)"
        db.execute(gone, [run, steps_left])
        rows = [{"run": run, **asdict(checkpoint)} for checkpoint in checkpoints]
        insert(db, "checkpoints", rows, "insert or replace")


def running_runs(db: duckdb.DuckDBPyConnection) -> list[str]:
    """List the pretraining runs that are recorded as running."""
    query = "select run from pretraining_runs where status = 'running' order by run"
    return [run for (run,) in db.execute(query).fetchall()]


def version_of_unfinished(
    db: duckdb.DuckDBPyConnection, workspace: Workspace, corpus: str, runs: Sequence[str]
) -> int | None:
    """Return the version of the newest of these runs if it did not end or has no report, or None."""
    query = """
        select run, version, status from pretraining_runs where corpus = ? and list_contains(?, run)
        order by version desc limit 1
        """
    for run, version, status in db.execute(query, [corpus, list(runs)]).fetchall():
        reported = status == "completed" and workspace.report(run).is_dir()
        return None if reported or status == "diverged" else version
    return None


@dataclass(frozen=True, slots=True)
class CorpusRead:
    """A corpus that a checkpoint was pretrained on."""

    name: str
    version: int | None  # if it is known
    characters: int  # of the newest version


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a checkpoint was trained on since one that no run of the workspace wrote, its start."""

    corpora: frozenset[CorpusRead]
    start: str  # a preset, a checkpoint from elsewhere, or the checkpoint itself


def lineages(
    db: duckdb.DuckDBPyConnection, workspace: Workspace, checkpoint: Path, seen: frozenset[Path] = frozenset()
) -> list[Lineage]:
    """Trace a checkpoint through the workspace's pretraining runs; of an average, one lineage a part.

    `seen` are the checkpoints on the way here.
    """
    read: frozenset[CorpusRead] = frozenset()
    if checkpoint in seen:  # a run began from a checkpoint of its own
        return [Lineage(read, str(checkpoint))]
    query = "select corpus, version, init, settings from pretraining_runs where run = ?"
    if rows := db.execute(query, [_run_of(workspace, checkpoint)]).fetchall():
        ((corpus, version, start, text),) = rows
        parts = [start]
        query = "select arg_max(characters, version) from versions where corpus = ?"
        known = {(corpus, version), *_others(db, text)}
        sizes = {pair: db.execute(query, [pair[0]]).fetchall()[0][0] for pair in known}
        read = frozenset(CorpusRead(*pair, size) for pair, size in sizes.items() if size is not None)
    else:
        parts = _made_from(checkpoint)
    behind = [one for part in parts for one in lineages(db, workspace, Path(part), seen | {checkpoint})]
    return [Lineage(one.corpora | read, one.start) for one in behind] or [Lineage(read, str(checkpoint))]


def versions_read(db: duckdb.DuckDBPyConnection) -> dict[str, set[tuple[str, int | None]]]:
    """List the corpora and versions that each pretraining run has read, mixed-in ones included."""
    rows = db.execute("select run, corpus, version, settings from pretraining_runs order by run").fetchall()
    return {run: {(corpus, version), *_others(db, text)} for run, corpus, version, text in rows}


def _others(db: duckdb.DuckDBPyConnection, settings: str) -> list[tuple[str, int | None]]:
    """List the corpora and versions that a run with these settings reads besides its own."""
    given = json.loads(settings)
    others = [*given.get("mix", ()), *filter(None, [given.get("then")])]
    return [(one["name"], _version_of(db, one["name"], one.get("shards", ()))) for one in others]


def _version_of(db: duckdb.DuckDBPyConnection, name: str, shards: Sequence[str]) -> int | None:
    """Find the newest version of a corpus that is made of these shards; None if it was removed."""
    paths = [f"shards/{name}/{Path(shard).name}" for shard in shards]
    query = """
        select max(version) from (
            select version, list(path order by position) as paths from version_shards
            where corpus = ? group by version)
        where paths = ?::varchar[]
        """
    return db.execute(query, [name, paths]).fetchall()[0][0]


def _made_from(checkpoint: Path) -> list[str]:
    """Read which checkpoints an average, a converted copy or a fine-tuned model was made from."""
    try:
        return list(read_json(checkpoint / MADE_FROM_FILE)["checkpoints"])
    except (InputError, KeyError, TypeError):
        return []


def _run_of(workspace: Workspace, checkpoint: Path) -> str | None:
    """Find the run whose folder a checkpoint is or lies in; by its path's end if the workspace was moved, or
    copied with the checkpoint.
    """
    if checkpoint.parts[-3:-2] == ("models",):
        run, name = checkpoint.parts[-2:]
        theirs, ours = checkpoint / "manifest.json", workspace.model(run) / name / "manifest.json"
        is_copied = theirs.is_file() and ours.is_file() and filecmp.cmp(theirs, ours, shallow=False)
        if is_copied or not checkpoint.exists():
            return run
    models = workspace.model("").resolve()
    folders = (checkpoint.resolve(), checkpoint.resolve().parent)
    return next((folder.name for folder in folders if folder.parent == models), None)


def end_killed_run(workspace: Workspace, run: str) -> None:
    """Mark a run as failed if it is still recorded as running."""
    reason = json.dumps({"error": "its process was killed, or the machine went down"})
    with write_catalog(workspace) as db:
        db.execute(
            """
            update pretraining_runs
            set status = 'failed', metrics = json_merge_patch(coalesce(metrics, '{}'), ?)
            where run = ? and status = 'running'
            """,
            [reason, run],
        )


def record_evaluations(workspace: Workspace, run: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Record an evaluation run, a row for each model, seed, split and metric, replacing older rows."""
    with write_catalog(workspace) as db:
        db.execute("delete from evaluations where run = ?", [run])
        insert(db, "evaluations", [{"run": run, **row} for row in rows])
