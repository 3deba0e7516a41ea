"""fine-tune: models and a labelled task -> each model trained under the same seeds, and a report that
compares them.
"""

from flows.cli import run_if_main

run_if_main(__name__)

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import Field

from albert import finetuning
from albert.finetuning import FineTuneResult, FineTuneSettings
from albert.reports import build_report, write_report
from data.catalog import record_evaluations
from data.workspace import Workspace, default_workspace
from flows.artifacts import plain, publish_report, repeat_command
from flows.devices import device_slot
from flows.forms import documented
from flows.settings import fine_tune_settings
from flows.steps import step

read_task = step("read-task")
train = step("fine-tune-model")
report = step("report")


@dataclass(frozen=True, slots=True)
class FineTuneOutcome:
    run: str
    result: FineTuneResult
    page: Path


@flow(name="fine-tune", flow_run_name="fine-tune on {task}")
@documented
def fine_tune(
    task: Annotated[str, Field(description="Name of the task, or a YAML task file (任务)")],
    train: Annotated[str, Field(description="TSV, CSV or JSONL with a header")],
    dev: Annotated[str, Field(description="Chooses the best epoch")],
    model: Annotated[list[str], Field(description="Checkpoint folders, compared with the first (模型)")],
    test: Annotated[str | None, Field(description="Scored once, at the best epoch")] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = str(
        default_workspace()
    ),
    seeds: Annotated[
        list[int], Field(min_length=1, description="Every model is trained with each (随机种子)")
    ] = [0, 1, 2],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    epochs: Annotated[int, Field(ge=1, description="The best on dev is kept (轮数)")] = 3,
    batch_size: Annotated[int, Field(ge=1, description="Examples to a step")] = 32,
    learning_rate: Annotated[float, Field(gt=0, lt=1, description="Peak rate (学习率)")] = 1e-4,
    max_seq_length: Annotated[
        int, Field(ge=8, le=512, description="Longer examples are cut to so many tokens")
    ] = 128,
    names: Annotated[
        list[str] | None, Field(description="Of the models in tables; their folders' if empty")
    ] = None,
    run: Annotated[
        str | None, Field(description="Name of the report; made from the settings if empty")
    ] = None,
) -> FineTuneOutcome:
    """Fine-tune every model with every seed, score them, and leave a report."""
    settings = fine_tune_settings(
        task=task,
        train=train,
        dev=dev,
        test=test,
        model=model,
        seeds=seeds,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_seq_length=max_seq_length,
        names=names,
    )
    with device_slot(Workspace(Path(workspace))):
        result = compare(settings)
    run = run or run_name(settings)
    page = report(run, lambda: _report(Workspace(Path(workspace)), run, settings, result))
    return FineTuneOutcome(run, result, page)


def compare(settings: FineTuneSettings) -> FineTuneResult:
    """One task for each model and seed."""
    data = read_task(settings.task.name, lambda: finetuning.read_task(settings))
    results = [
        train(
            f"{name} seed {seed}",
            lambda path=path, name=name, seed=seed: finetuning.fine_tune_one(
                settings, data, path, name, seed
            ),
        )
        for path, name in zip(settings.models, settings.model_names(), strict=True)
        for seed in settings.seeds
    ]
    return finetuning.collect(settings, data, results)


def run_name(settings: FineTuneSettings) -> str:
    """A name that is the same for the same comparison."""
    digest = hashlib.sha256(json.dumps(plain(settings), sort_keys=True).encode()).hexdigest()[:8]
    return f"{settings.task.name}-{digest}"


def record(workspace: Workspace, run: str, settings: FineTuneSettings, result: FineTuneResult) -> None:
    """Put every score into the catalog."""
    rows = [
        {
            "task": result.task,
            "model": r.model,
            "seed": r.seed,
            "learning_rate": settings.learning_rate,
            "best_epoch": r.best_epoch,
            "dev_accuracy": r.dev.accuracy,
            "dev_macro_f1": r.dev.macro_f1,
            "test_accuracy": r.test.accuracy if r.test else None,
            "test_macro_f1": r.test.macro_f1 if r.test else None,
            "seconds": r.seconds,
        }
        for r in result.seeds
    ]
    record_evaluations(workspace, run, rows)


def _report(workspace: Workspace, run: str, settings: FineTuneSettings, result: FineTuneResult) -> Path:
    record(workspace, run, settings, result)
    content = build_report(
        title=f"Fine-tuning on {result.task}",
        command=repeat_command(),
        evaluation=result,
        settings={"fine-tuning": plain(settings)},
    )
    page = write_report(content, workspace.report(run))
    publish_report(content, page)
    return page


def table(result: FineTuneResult) -> str:
    """The comparison as lines of text."""
    split = result.reported_split
    lines = []
    for model in result.models:
        dev, scored, f1 = (
            result.summary(model, part, metric)
            for part, metric in (("dev", "accuracy"), (split, "accuracy"), (split, "macro_f1"))
        )
        line = (
            f"{model}: dev accuracy {100 * dev.mean:.2f} ± {100 * dev.deviation:.2f}, {split} accuracy "
            f"{100 * scored.mean:.2f} ± {100 * scored.deviation:.2f}, macro F1 {100 * f1.mean:.2f}"
        )
        if model != result.models[0]:
            difference = result.difference(model, split)
            mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
            line += f" ({mean:+.2f}, 95% {low:+.2f} to {high:+.2f})"
        lines.append(line)
    return "\n".join(lines)


def describe(outcome: FineTuneOutcome) -> str:
    """What a person wants to know of the result."""
    skipped = outcome.result.skipped
    notes = [f"{len(skipped)} row(s) could not be used, first: {skipped[0]}"] if skipped else []
    return "\n".join([table(outcome.result), *notes, f"report {outcome.page}"])
