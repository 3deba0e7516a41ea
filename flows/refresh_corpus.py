"""refresh-corpus: raw text -> cleaned documents -> instance shards -> a new corpus version in the catalog."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from prefect.events import emit_event

from data import refresh
from data.catalog import Drift, Statistics, describe_drift, measure_drift
from data.publication import published_at
from data.refresh import RefreshResult
from data.workspace import Workspace
from flows.orchestration import (
    RefreshOptions,
    RefreshOutcome,
    RefreshPlan,
    find_checkpoint,
    is_deployed,
    job,
    log,
    open_runner,
    publish_refresh,
    publish_table,
    run_as_command,
    step,
)

find_drift = step("drift")


def describe(outcome: RefreshOutcome) -> str:
    """What a person wants to know of the result."""
    lines = refresh.describe_result(outcome.result)
    if outcome.drift:
        lines.append(describe_drift(outcome.drift))
    if followed := outcome.pretraining:
        lines.append(
            f"pretraining followed: {followed.status} after {followed.steps:,} steps, {followed.checkpoint}"
        )
    return "\n".join(lines)


@job(describe, run_name="refresh {corpus}")
def refresh_corpus(options: RefreshOptions, plan: RefreshPlan) -> RefreshOutcome:
    """Refresh, measure drift, and pretrain where it is asked for."""
    settings, running = plan.refresh.settings, options.running
    workspace = Workspace(settings.workspace)
    hours = 3600 * running.task_hours
    with open_runner(settings.workers, running.dask_address, hours) as tasks:
        # a deployment's run can wait for another refresh of the corpus; a command is refused at once
        result = refresh.refresh(settings, tasks, plan.refresh, on_wait=log if is_deployed() else None)
    publish_refresh(workspace, result)
    drift = pretraining = None
    checkpoint = find_checkpoint(workspace, result.corpus)
    if result.is_new and result.version > 1:
        conditions = [plan.event_if, plan.pretrain_if]
        measures = {condition.measure for condition in conditions if condition}
        drift = find_drift(result.corpus, lambda: measure(workspace, result, measures, checkpoint))
    if drift and plan.event_if.holds(drift):
        announce_drift(workspace, result, drift, checkpoint)
    if drift and plan.pretrain_if and plan.pretrain_if.holds(drift):
        from flows.continued_pretraining import continued_pretraining

        pretraining = continued_pretraining(
            corpus=result.corpus,
            workspace=str(settings.workspace),
            init=str(checkpoint),
            steps=options.drift.steps,
        )
    return RefreshOutcome(result, drift, pretraining)


def measure(
    workspace: Workspace, result: RefreshResult, measures: Collection[str], checkpoint: Path | None
) -> Drift | None:
    """How far new documents are from older ones; None where there are none."""
    with Statistics(workspace) as statistics:
        drift = measure_drift(statistics, result.corpus)
    if drift and checkpoint and "mlm_loss" in measures:
        # torch takes seconds to import
        from flows.orchestration import added_mlm_loss

        drift = replace(drift, mlm_loss=added_mlm_loss(workspace, result.corpus, checkpoint))
    if drift:
        about = f"{result.corpus} version {result.version}: its new documents against those before"
        measured = [item for item in drift.measures().items() if item[1] is not None]
        rows = [{"measure": name, "value": value} for name, value in measured]
        publish_table("drift", result.corpus, rows, about)
    return drift


def announce_drift(
    workspace: Workspace, result: RefreshResult, drift: Drift, checkpoint: Path | None
) -> None:
    """Emit jixu.corpus.drifted, with what an automation needs to start pretraining."""
    emit_event(
        "jixu.corpus.drifted",
        resource={
            "prefect.resource.id": f"jixu.corpus.{result.corpus}",
            "prefect.resource.name": result.corpus,
            "jixu.has-checkpoint": "yes" if checkpoint else "no",
        },
        payload={
            "corpus": result.corpus,
            "version": result.version,
            "workspace": published_at(workspace),
            "checkpoint": str(checkpoint) if checkpoint else None,
            **drift.measures(),
        },
    )


if __name__ == "__main__":
    run_as_command(__file__)
