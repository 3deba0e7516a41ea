"""continued-pretraining: a corpus and a checkpoint or random weights -> a better checkpoint and a report."""

from prefect.states import Cancelled, State

from albert import reports
from albert.pretraining import PretrainResult, read_settings
from flows.orchestration import (
    PretrainingOptions,
    PretrainingPlan,
    Reported,
    device_slot,
    gather_facts,
    is_deployed,
    job,
    log,
    publish_report,
    repeat_command,
    run_as_command,
    run_pretraining,
    step,
)

# no retry: running it again resumes from the last checkpoint, and an error of the data would come again
train = step("train")
report = step("report")


def describe(result: PretrainResult) -> str:
    """What a person wants to know of the result."""
    lines = [
        f"{result.run_folder.name}: {result.status} after {result.steps:,} steps, {result.tokens:,} tokens, "
        f"{result.tokens_per_second:,.0f} tokens/s"
        + (f", resumed at {result.resumed_from:,}" if result.resumed_from else ""),
        reports.held_out_table(result).to_markdown(),
        *([f"before training, {result.probe.describe()}"] if result.probe else []),
        *result.notices,
        f"checkpoint {result.checkpoint}"
        + (f", best checkpoint {result.best_checkpoint.name}" if result.best_checkpoint else ""),
        f"report {result.run_folder.parent.parent / 'reports' / result.run_folder.name / 'index.html'}",
    ]
    return "\n".join(lines)


@job(describe, run_name="pretrain {init} on {corpus}")
def continued_pretraining(options: PretrainingOptions, plan: PretrainingPlan) -> PretrainResult | State:
    """Train and report; a run that was stopped does not count as completed."""
    with device_slot(plan.workspace, options.processes):
        result = train(plan.run, lambda: run_pretraining(plan, options.processes))
    report(plan.run, lambda: _report(plan, result))
    if result.status == "interrupted" and is_deployed():
        log(describe(result))
        return Cancelled(
            message=f"Stopped at step {result.steps}, with a checkpoint: run it again to resume."
        )
    return result


def _report(plan: PretrainingPlan, result: PretrainResult) -> Reported:
    corpora = [plan.version.corpus, *(one.name for one in plan.settings.others)]
    content = reports.build_report(
        title=f"Continued pretraining: {plan.run}",
        command=repeat_command(),
        corpora=gather_facts(plan.workspace, dict.fromkeys(corpora), result.checkpoint),
        pretraining=result,
        settings={"pretraining": read_settings(result.run_folder)},
    )
    return publish_report(content, plan.workspace.report(plan.run))


if __name__ == "__main__":
    run_as_command(__file__)
