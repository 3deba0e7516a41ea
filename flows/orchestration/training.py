"""A pretraining run as a flow trains it: by one process at a time, with its record in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from albert import pretraining
from albert.pretraining import PretrainResult, TrainerState, read_trainer_state
from data.catalog import CheckpointRow, checking, end_killed_run, record_run
from data.files import sha256
from flows.orchestration.artifacts import begin_progress
from flows.orchestration.logs import log, say
from flows.orchestration.plans import PretrainingPlan, complete_tokenizer
from flows.orchestration.processes import train_in_processes
from flows.orchestration.slots import sole_training


def run_pretraining(plan: PretrainingPlan, processes: int = 1) -> PretrainResult:
    """Train, keeping the catalog's record of the run up to date at every checkpoint and where it fails.

    Raises InputError while another process trains the run.
    """
    complete_tokenizer(plan)
    if plan.version.version < plan.newest:
        log(
            f"{plan.run} goes on with version {plan.version.version} of {plan.version.corpus}, on which it "
            f"began; version {plan.newest} is for a run of another name, or --resume never"
        )
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
        if not state.step:  # from its begin a clean-up leaves it its versions
            return _record(plan, state, status, checkpoints)
        resumes = status == "running" and state.step in checkpoints
        event = "resuming" if resumes else "checkpoint"
        checkpoints[state.step] = _row(plan, state, folder)
        _record(plan, state, status, checkpoints)
        move(state.step / plan.settings.steps)
        loss = checkpoints[state.step].mlm_loss
        log(
            f"{event} at step {state.step:,} of {plan.settings.steps:,}, {state.tokens:,} tokens"
            + (f", held-out MLM loss {loss:.3f}" if loss is not None else "")
        )

    shards = [shard for corpus in plan.settings.others for shard in corpus.shards]
    with checking(plan.workspace, [*plan.settings.shards, *shards]) as check:
        if processes > 1:
            return train_in_processes(plan.settings, processes, record, check)
        result = pretraining.pretrain(plan.settings, on_checkpoint=record, check=check)
    if result.resumed_from == result.steps:  # a process may have ended before it wrote to the catalog
        record(read_trainer_state(result.checkpoint), result.checkpoint, result.status)
    return result


def _record_failure(plan: PretrainingPlan) -> None:
    """Tell the catalog how a training ended that has raised an error."""
    failure = pretraining.read_failure(plan.settings.run_folder)
    if failure is None:  # refused before it began, or killed with all its processes
        end_killed_run(plan.workspace, plan.run)
        return
    checkpoints, state = _known_checkpoints(plan), TrainerState()
    if checkpoints:
        state = read_trainer_state(pretraining.checkpoint_folder(plan.settings.run_folder, max(checkpoints)))
    _record(plan, state, failure.status, checkpoints, failure.reason)


def _known_checkpoints(plan: PretrainingPlan) -> dict[int, CheckpointRow]:
    """The catalog's rows of the whole checkpoints there are, by step."""
    folders = filter(pretraining.is_whole, pretraining.list_checkpoints(plan.settings.run_folder))
    return {pretraining.step_of(folder): _row(plan, read_trainer_state(folder), folder) for folder in folders}


def _record(
    plan: PretrainingPlan,
    state: TrainerState,
    status: str,
    checkpoints: Mapping[int, CheckpointRow],
    error: str | None = None,
) -> None:
    record_run(
        plan.workspace,
        run=plan.run,
        corpus=plan.version.corpus,
        version=plan.version.version,
        init=plan.settings.init,
        settings=plan.settings,
        status=status,
        steps=state.step,
        tokens=state.tokens,
        metrics={**_measured(state), **({"error": error} if error else {})},
        checkpoints=[c for c in checkpoints.values() if (plan.workspace.root / c.path).is_dir()],
    )


def _measured(state: TrainerState) -> dict[str, float]:
    """The newest evaluation."""
    return next((record for record in reversed(state.history) if "held_out_mlm_loss" in record), {})


def _row(plan: PretrainingPlan, state: TrainerState, folder: Path) -> CheckpointRow:
    newest = _measured(state)
    measured = newest if newest.get("step") == state.step else {}
    return CheckpointRow(
        step=state.step,
        path=plan.workspace.relative(folder),
        sha256=sha256(folder / pretraining.MANIFEST_FILE),  # which lists the sha256 of each file
        mlm_loss=measured.get("held_out_mlm_loss"),
        mlm_accuracy=measured.get("held_out_mlm_accuracy"),
        sop_accuracy=measured.get("held_out_sop_accuracy"),
    )
