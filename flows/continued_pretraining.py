"""continued-pretraining: a corpus and a checkpoint (or random weights) -> a better checkpoint and a
report.
"""

from flows.orchestration import run_if_main

run_if_main(__name__)

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from prefect import flow, runtime
from prefect.states import Cancelled
from pydantic import Field

from albert import pretraining
from albert.learning_rate import OptimizerName, ScheduleName
from albert.pretraining import (
    PretrainResult,
    TrainerState,
    checkpoint_folder,
    is_whole,
    list_checkpoints,
    read_trainer_state,
    step_of,
)
from albert.reports import build_report, write_report
from data.catalog import end_killed_run, open_workspace, record_run
from data.workspace import default_place
from flows.orchestration import (
    PretrainingPlan,
    begin_progress,
    complete_tokenizer,
    device_slot,
    documented,
    ends_with_its_worker,
    gather_facts,
    in_working_copy,
    log,
    plain,
    pretraining_plan,
    publish_report,
    repeat_command,
    say,
    sole_training,
    step,
    train_in_processes,
)

# no retry: re-running goes on from the last checkpoint, and an error of the data would come again
train = step("train")
report = step("report")


@flow(name="continued-pretraining", flow_run_name="pretrain {init} on {corpus}")
@documented
@ends_with_its_worker
@in_working_copy
def continued_pretraining(
    corpus: Annotated[str, Field(description="Name of a corpus of the workspace (语料名)")],
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
    init: Annotated[
        str, Field(description="Checkpoint, hf:REPO, or a preset for random weights (起点)")
    ] = "tiny",
    steps: Annotated[int, Field(ge=1, description="Optimiser steps of the whole run (步数)")] = 1000,
    batch_tokens: Annotated[int, Field(ge=128, description="Tokens to a step")] = 4096,
    optimizer: Annotated[OptimizerName, Field(description="优化器")] = "adamw",
    learning_rate: Annotated[
        float | None, Field(gt=0, description="Peak rate (学习率); by optimiser and batch size if empty")
    ] = None,
    reference_batch_tokens: Annotated[
        int | None,
        Field(ge=1, description="Tokens of the batch that learning_rate is meant for; it is scaled from it"),
    ] = None,
    schedule: Annotated[ScheduleName, Field(description="Of the rate, after the warm-up")] = "linear",
    mix: Annotated[
        list[str], Field(description="NAME:SHARE of the tokens from a second corpus, e.g. general:0.2 (混入)")
    ] = [],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    then: Annotated[
        str | None,
        Field(description="NAME:SHARE of the last steps on another corpus, e.g. law-512:0.1 (longer texts)"),
    ] = None,
    masking: Annotated[
        Literal["dynamic", "static"],
        Field(description="New masks every epoch (动态遮盖), or the stored ones"),
    ] = "dynamic",
    mask_rates: Annotated[
        list[float] | None,
        Field(min_length=2, max_length=2, description="At the first and last step, e.g. 0.3, 0.15"),
    ] = None,
    sop_weight: Annotated[float, Field(ge=0, description="Of the sentence-order loss")] = 1.0,
    precision: Annotated[Literal["bf16", "fp32"], Field(description="Of the operators (精度)")] = "bf16",
    share: Annotated[
        Literal["all", "attention", "ffn", "none"] | None,
        Field(description="Give layers parameters of their own; as the start if empty"),
    ] = None,
    num_hidden_layers: Annotated[
        int | None, Field(ge=1, description="More layers, tiled from the start's; as many if empty")
    ] = None,
    activation_checkpointing: Annotated[
        bool, Field(description="Less memory, a third more operations")
    ] = False,
    accumulate: Annotated[
        int | None, Field(ge=1, description="Parts a step is computed in; one a process if empty")
    ] = None,
    processes: Annotated[int, Field(ge=1, description="On this machine, one a GPU (进程数)")] = 1,
    patience: Annotated[
        int | None, Field(ge=1, description="Stop after so many evaluations without a better one")
    ] = None,
    max_forgetting: Annotated[
        float | None, Field(ge=0, description="How far a mixed corpus's held-out loss may rise")
    ] = None,
    deterministic: Annotated[bool, Field(description="Refuse operations that vary on a GPU")] = False,
    tensorboard: Annotated[bool, Field(description="Write event files too")] = False,
    run: Annotated[str | None, Field(description="Name of the run; made from the settings if empty")] = None,
    resume: Annotated[
        Literal["auto", "never"], Field(description="Go on from the run's last checkpoint")
    ] = "auto",
    seed: Annotated[int, Field(ge=0, le=2**31, description="Of all that is random (随机种子)")] = 0,
) -> PretrainResult:
    """Train on a corpus, from a checkpoint or random weights; running it again goes on where it stopped."""
    parameters = locals()
    parameters.pop("processes")
    plan = pretraining_plan(**parameters)
    with device_slot(plan.workspace, processes):
        result = train(plan.run, lambda: run_pretraining(plan, processes))
    report(plan.run, lambda: _report(plan, result))
    log(describe(result))
    if result.status == "interrupted" and runtime.deployment.id:
        # a run that was stopped is not to be taken for a completed one
        return Cancelled(message=f"Stopped at step {result.steps}, with a checkpoint: run it again to go on.")
    return result


def run_pretraining(plan: PretrainingPlan, processes: int = 1) -> PretrainResult:
    """Train, keeping the catalog's record of the run up to date at every checkpoint and where it fails.

    Raises InputError while another process trains the run.
    """
    complete_tokenizer(plan)
    with sole_training(plan.workspace, plan.run):
        try:
            return _train(plan, processes)
        except BaseException:
            try:
                _record_failure(plan)
            except Exception as error:  # a full disk may have no room for this either
                say(f"the catalog does not say that {plan.run} failed: {error}")
            raise


def _train(plan: PretrainingPlan, processes: int) -> PretrainResult:
    move = begin_progress(plan.run, f"steps of {plan.settings.steps:,}, at every checkpoint")
    checkpoints = {} if plan.settings.resume == "never" else _known_checkpoints(plan)
    pretraining.forget_failure(plan.settings.run_folder)

    def record(state: TrainerState, folder: Path, status: str) -> None:
        checkpoints[state.step] = _row(plan, state, folder)
        _record(plan, state, status, checkpoints)
        move(state.step / plan.settings.steps)
        loss = _measured(state).get("held_out_mlm_loss")
        log(
            f"checkpoint at step {state.step:,} of {plan.settings.steps:,}, {state.tokens:,} tokens"
            + (f", held-out MLM loss {loss:.3f}" if loss is not None else "")
        )

    if processes > 1:
        return train_in_processes(plan.settings, processes, record)
    result = pretraining.pretrain(plan.settings, on_checkpoint=record)
    if result.resumed_from == result.steps:  # a process may have ended before it told the catalog
        record(read_trainer_state(result.checkpoint), result.checkpoint, result.status)
    return result


def _record_failure(plan: PretrainingPlan) -> None:
    """Tell the catalog how a training ended that has raised an error."""
    failure = pretraining.read_failure(plan.settings.run_folder)
    if failure is None:  # refused before it began, or killed with all its processes
        end_killed_run(plan.workspace, plan.run)
        return
    checkpoints = _known_checkpoints(plan)
    newest = max(checkpoints, default=None)
    state = TrainerState()
    if newest is not None:
        state = read_trainer_state(checkpoint_folder(plan.settings.run_folder, newest))
    _record(plan, state, failure.status, checkpoints, error=failure.reason)


def _known_checkpoints(plan: PretrainingPlan) -> dict[int, dict[str, object]]:
    """The catalog's rows of the whole checkpoints there are, by step."""
    kept = [folder for folder in list_checkpoints(plan.settings.run_folder) if is_whole(folder)]
    return {step_of(folder): _row(plan, read_trainer_state(folder), folder) for folder in kept}


def _record(
    plan: PretrainingPlan,
    state: TrainerState,
    status: str,
    checkpoints: Mapping[int, Mapping[str, object]],
    **more: str,
) -> None:
    record_run(
        plan.workspace,
        run=plan.run,
        corpus=plan.version.corpus,
        version=plan.version.version,
        init=plan.settings.init,
        settings=plain(plan.settings),
        status=status,
        steps=state.step,
        tokens=state.tokens,
        metrics={**_measured(state), **more},
        checkpoints=[c for c in checkpoints.values() if (plan.workspace.root / c["path"]).is_dir()],
    )


def _measured(state: TrainerState) -> dict[str, float]:
    """The newest evaluation."""
    return next((record for record in reversed(state.history) if "held_out_mlm_loss" in record), {})


def _row(plan: PretrainingPlan, state: TrainerState, folder: Path) -> dict[str, object]:
    """What the catalog keeps of a checkpoint."""
    measured = _measured(state)
    return {
        "step": state.step,
        "path": plan.workspace.relative(folder),
        "sha256": pretraining.checkpoint_digest(folder),
        "mlm_loss": measured.get("held_out_mlm_loss"),
        "mlm_accuracy": measured.get("held_out_mlm_accuracy"),
        "sop_accuracy": measured.get("held_out_sop_accuracy"),
    }


def _report(plan: PretrainingPlan, result: PretrainResult) -> Path:
    with open_workspace(plan.workspace.root) as statistics:
        facts = gather_facts(statistics, plan.version.corpus)
    content = build_report(
        title=f"Continued pretraining: {plan.run}",
        command=repeat_command(),
        corpora=[facts],
        pretraining=result,
        settings={"pretraining": plain(plan.settings)},
    )
    page = write_report(content, plan.workspace.report(plan.run))
    publish_report(content, page)
    return page


def describe(result: PretrainResult) -> str:
    """What a person wants to know of the result."""
    before, after = result.evaluations()[0], result.evaluations()[-1]
    lines = [
        f"{result.run_folder.name}: {result.status} after {result.steps:,} steps, {result.tokens:,} tokens, "
        f"{result.tokens_per_second:,.0f} tokens/s"
        + (f", resumed at {result.resumed_from:,}" if result.resumed_from else ""),
        f"held-out MLM loss {before['held_out_mlm_loss']:.3f} -> {after['held_out_mlm_loss']:.3f}, accuracy "
        f"{before['held_out_mlm_accuracy']:.3f} -> {after['held_out_mlm_accuracy']:.3f}"
        + (
            f"; SOP accuracy {before['held_out_sop_accuracy']:.3f} -> {after['held_out_sop_accuracy']:.3f}"
            if "held_out_sop_accuracy" in after
            else ""
        ),
        *_other_corpora(before, after),
        *([result.probe.describe()] if result.probe else []),
        *result.notices,
        f"checkpoint {result.checkpoint}"
        + (f", the best one {result.best_checkpoint.name}" if result.best_checkpoint else ""),
        f"report {result.run_folder.parent.parent / 'reports' / result.run_folder.name / 'index.html'}",
    ]
    return "\n".join(lines)


def _other_corpora(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    names = [name.partition("@")[2] for name in after if name.startswith("held_out_mlm_loss@")]
    return [
        f"on {name}: held-out MLM loss {before[f'held_out_mlm_loss@{name}']:.3f} -> "
        f"{after[f'held_out_mlm_loss@{name}']:.3f}, accuracy "
        f"{before[f'held_out_mlm_accuracy@{name}']:.3f} -> {after[f'held_out_mlm_accuracy@{name}']:.3f}"
        for name in names
    ]
