"""Rows of the catalog about pretraining runs, their checkpoints, and evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import duckdb

from data.catalog.database import write_catalog
from data.workspace import Workspace


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
    settings: Mapping[str, object],
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
    with write_catalog(workspace) as db:
        db.execute(
            """
            insert or replace into pretraining_runs values (?, ?, ?, ?, ?, ?, ?, ?, ?,
                coalesce((select created_at from pretraining_runs where run = ?), now()),
                case when ? = 'completed' then now() end)
            """,
            [run, corpus, version, init, json.dumps(settings, ensure_ascii=False), status, steps, tokens]
            + [json.dumps(metrics), run, status],
        )
        db.execute("delete from checkpoints where run = ?", [run])
        rows = [(run, *astuple(checkpoint)) for checkpoint in checkpoints]
        if rows:
            names = ", ".join(field.name for field in fields(CheckpointRow))
            db.executemany(f"insert into checkpoints (run, {names}) values (?, ?, ?, ?, ?, ?, ?)", rows)


def running_runs(db: duckdb.DuckDBPyConnection) -> list[str]:
    """List the pretraining runs that are recorded as running."""
    query = "select run from pretraining_runs where status = 'running' order by run"
    return [run for (run,) in db.execute(query).fetchall()]


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
    names = ("task", "model", "seed", "learning_rate", "best_epoch", "split", "metric", "score", "seconds")
    with write_catalog(workspace) as db:
        db.execute("delete from evaluations where run = ?", [run])
        db.executemany(
            f"insert into evaluations (run, {', '.join(names)}) values ({', '.join('?' * (len(names) + 1))})",
            [(run, *(row[name] for name in names)) for row in rows],
        )
