"""fine-tune: models and a labelled task -> each model trained under the same seeds, and a report that
compares them.
"""

from flows.orchestration import run_if_main

run_if_main(__name__)

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import Field
from tqdm import tqdm

from albert import finetuning
from albert.evaluation import Comparison
from albert.finetuning import (
    Candidate,
    FineTuneSettings,
    ModelRuns,
    SeedAndRate,
    SeedRun,
    load_run,
    run_key,
    save_run,
    sha256_of,
)
from albert.reports import build_report, write_report
from albert.tasks import TaskData
from data.catalog import record_evaluations
from data.workers import worker_pool
from data.workspace import Workspace, default_place
from flows.orchestration import (
    Known,
    begin_progress,
    checked,
    device_slot,
    documented,
    domain_words,
    ends_with_its_worker,
    fine_tune_settings,
    in_working_copy,
    log,
    measure_model,
    plain,
    publish_report,
    repeat_command,
    step,
)

read_task = step("read-task")
train = step("fine-tune-model")
measure = step("measure-model")
report = step("report")


@dataclass(frozen=True, slots=True)
class FineTuneOutcome:
    run: str
    result: Comparison
    page: Path


@flow(name="fine-tune", flow_run_name="fine-tune on {task}")
@documented
@ends_with_its_worker
@in_working_copy
@checked
def fine_tune(
    task: Annotated[str, Field(description="Name of the task, or a YAML task file (任务)")],
    dev: Annotated[str, Field(description="Chooses the best epoch")],
    model: Annotated[list[str], Field(description="Checkpoint folders, compared with the first (模型)")],
    train: Annotated[str | None, Field(description="Examples as the publisher has them (训练集)")] = None,
    test: Annotated[str | None, Field(description="Scored once, at the best epoch")] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
    seeds: Annotated[
        list[int], Field(min_length=1, description="Every model is trained with each (随机种子)")
    ] = [0, 1, 2, 3, 4],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    epochs: Annotated[int, Field(ge=1, description="The best on dev is kept (轮数)")] = 3,
    batch_size: Annotated[int, Field(ge=1, description="Examples to a step")] = 32,
    learning_rate: Annotated[float, Field(gt=0, lt=1, description="Peak rate (学习率)")] = 1e-4,
    sweep: Annotated[
        list[float], Field(description="Learning rates to choose from on dev, in place of the one")
    ] = [],  # noqa: B006
    max_seq_length: Annotated[
        int, Field(ge=8, le=512, description="Longer examples are cut to so many tokens")
    ] = 128,
    corpus: Annotated[
        str | None,
        Field(description="That models but the first were pretrained on: what they know of it (领域语料)"),
    ] = None,
    general: Annotated[
        str | None, Field(description="General corpus: what models forget of it (通用语料)")
    ] = None,
    names: Annotated[
        list[str] | None, Field(description="Of the models in tables; their folders' if empty")
    ] = None,
    workers: Annotated[
        int | None, Field(ge=1, description="Seeds at a time; as many as cores if empty, one on a GPU")
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
        sweep=sweep,
        max_seq_length=max_seq_length,
        names=names,
    )
    place = Workspace(Path(workspace))
    with device_slot(place):
        result = compare(settings, place, Known(corpus=corpus, general=general), workers=workers)
    run = run or run_name(settings)
    page = report(run, lambda: _report(place, run, settings, result))
    outcome = FineTuneOutcome(run, result, page)
    log(describe(outcome))
    return outcome


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller knows of a model beside its checkpoint."""

    note: str | None = None
    corpora: tuple[str, ...] = ()  # it was pretrained on, to be searched for texts of dev and test
    # whether they hold, in other documents, the texts that the corpus of the field holds out
    has_read_held_out: bool = False
    pretraining: tuple[dict[str, float], ...] = ()

    def asked(self, known: Known) -> Known:
        """The corpora to ask the model about: not one whose held-out texts it was trained on."""
        return replace(known, corpus=None) if self.has_read_held_out else known


def compare(
    settings: FineTuneSettings,
    workspace: Workspace,
    known: Known,
    told: Sequence[Told] | None = None,
    *,
    workers: int | None = None,
    stepwise: bool = False,
) -> Comparison:
    """One task for each model and seed; what an earlier run of the same made is taken from the workspace."""
    data = read_task(settings.task.name, lambda: finetuning.read_task(settings))
    told = told or usual(known, len(settings.models))
    move = begin_progress(settings.task.name, f"of {len(told)} models")
    models: list[ModelRuns] = []
    at_once = max(len(settings.seeds), len(settings.learning_rates))
    with _open_pool(workers, at_once) as pool:
        for number, one in enumerate(told):
            models.append(_model_runs(settings, data, number, workspace, known, one, pool))
            move(len(models) / len(told))
    words = domain_words(workspace.root, known.corpus) if known.corpus else ()
    return finetuning.compare_models(data, models, domain_words=words, stepwise=stepwise)


def usual(known: Known, models: int) -> list[Told]:
    """All models have read the general corpus; all but the first of several that of the field too."""
    general = Told(corpora=(known.general,) if known.general else ())
    both = Told(corpora=tuple(name for name in (known.general, known.corpus) if name))
    return [both] if models == 1 else [general, *[both] * (models - 1)]


def _model_runs(
    settings: FineTuneSettings,
    data: TaskData,
    number: int,
    workspace: Workspace,
    known: Known,
    told: Told,
    pool: Executor | None,
) -> ModelRuns:
    candidate = finetuning.prepare(settings, data, number)
    kept = _Kept(workspace.root / "evaluations", pool)
    runs, points = finetuning.fine_tune_model(candidate, kept.train)
    model = ModelRuns(
        candidate=candidate, runs=runs, sweep=points, note=told.note, pretraining=told.pretraining
    )
    asked, corpora = told.asked(known), told.corpora
    measured = measure(candidate.name, lambda: measure_model(candidate, workspace, asked, corpora))
    return replace(model, **measured)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Training that keeps what it made in a folder, and makes nothing twice."""

    folder: Path
    pool: Executor | None  # None: one by one in this process

    def train(self, candidate: Candidate, wanted: Sequence[SeedAndRate]) -> list[SeedRun]:
        calls = [
            (f"{candidate.name} seed {seed}", partial(self._run, candidate, seed, rate))
            for seed, rate in wanted
        ]
        if self.pool is None:
            return [train(*call) for call in calls]
        begun = [train.submit(*call) for call in calls]
        title, silent = candidate.name, not sys.stderr.isatty()
        return [one.result() for one in tqdm(begun, title, unit="run", disable=silent, leave=False)]

    def _run(self, candidate: Candidate, seed: int, learning_rate: float) -> SeedRun:
        path = self.folder / f"{run_key(candidate, seed, learning_rate)}.npz"
        found = load_run(candidate, path)
        if found is None:
            given = (candidate, seed, learning_rate)
            one = finetuning.fine_tune_one
            found = self.pool.submit(one, *given).result() if self.pool else one(*given)
            save_run(found, candidate, path)
        return found


@contextmanager
def _open_pool(workers: int | None, runs: int) -> Iterator[Executor | None]:
    """Processes for so many runs, which share this one's threads; None for a single one."""
    workers = min(workers or finetuning.usual_workers(), runs)
    if workers == 1:
        yield None
        return
    with worker_pool(workers, finetuning.worker_start(workers)) as pool:
        yield pool


def run_name(settings: FineTuneSettings) -> str:
    """A name that is the same for the same comparison."""
    digest = hashlib.sha256(json.dumps(plain(settings), sort_keys=True).encode()).hexdigest()[:8]
    return f"{settings.task.name}-{digest}"


def record(workspace: Workspace, run: str, result: Comparison) -> None:
    """Put every score into the catalog."""
    rows = [
        {
            "task": result.task,
            "model": model.name,
            "seed": one.seed,
            "learning_rate": one.learning_rate,
            "best_epoch": one.best_epoch,
            "split": split,
            "metric": metric,
            "score": value,
            "seconds": one.seconds,
        }
        for model in result.models
        for one in model.seeds
        for split, scores in (("dev", one.dev), ("test", one.test))
        for metric, value in (scores or {}).items()
    ]
    record_evaluations(workspace, run, rows)


def _report(workspace: Workspace, run: str, settings: FineTuneSettings, result: Comparison) -> Path:
    record(workspace, run, result)
    content = build_report(
        title=f"Fine-tuning on {result.task}",
        command=repeat_command(),
        evaluations=[result],
        settings={"fine-tuning": plain(settings)},
        checksums={str(path): sha256_of(path) for path in settings.split_paths.values()},
    )
    page = write_report(content, workspace.report(run))
    publish_report(content, page)
    return page


def table(result: Comparison) -> str:
    """The comparison as lines of text."""
    lines = []
    for model in result.models:
        scores = result.scores(model.name)
        shown = [("dev", result.metric, model.dev[result.metric])]
        shown += [(result.split, metric, summary) for metric, summary in scores.items()]
        line = f"{model.name}: " + ", ".join(
            f"{split} {metric.replace('_', ' ')} {100 * one.mean:.2f} ± {100 * one.deviation:.2f}"
            for split, metric, one in dict.fromkeys(shown)
        )
        difference = result.difference(model.name)
        if difference is not None:
            line += f" ({100 * difference.mean:+.2f}"
            if difference.low is not None:
                line += f", 95% {100 * difference.low:+.2f} to {100 * difference.high:+.2f}"
                line += f"; beats {difference.baseline} with probability {difference.probability:.2f}"
            line += ")"
        restarts = sum(one.restarts for one in model.seeds)
        stuck = sum(not one.left_chance for one in model.seeds)
        line += f"; {restarts} restart(s)" if restarts else ""
        line += f"; {stuck} seed(s) never left chance level" if stuck else ""
        lines.append(line)
    return "\n".join(lines)


def describe(outcome: FineTuneOutcome) -> str:
    """What a person wants to know of the result."""
    skipped = outcome.result.skipped
    notes = [f"{len(skipped)} row(s) could not be used, first: {skipped[0]}"] if skipped else []
    return "\n".join([table(outcome.result), *notes, f"report {outcome.page}"])
