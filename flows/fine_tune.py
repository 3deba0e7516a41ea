"""fine-tune: models and a labelled task -> each model trained under the same seeds, and a comparison."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from pydantic_core import to_jsonable_python

from albert import finetuning, reports
from albert.evaluation import Comparison, judge, metric_name
from albert.finetuning import QUIET_SECONDS, FineTuneSettings, KeptModels, Run, SeedRun, run_key
from data.catalog import record_evaluations
from data.workers import worker_pool
from data.workspace import Workspace
from flows.orchestration import (
    Corpora,
    CorporaOptions,
    FineTuneOptions,
    FineTunePlan,
    Reported,
    begin_progress,
    corpora_to_search,
    describe_report,
    device_slot,
    domain_words,
    file_checksums,
    job,
    measure_model,
    publish_report,
    repeat_command,
    run_as_command,
    say,
    step,
)

train = step("fine-tune-model")
measure = step("measure-model")
report = step("report")
describe = describe_report


@job(describe, run_name="fine-tune on {task}")
def fine_tune(options: FineTuneOptions, plan: FineTunePlan) -> Reported:
    """Fine-tune every model with every seed, score them, and leave a report."""
    place = options.place
    run = options.run or run_name(plan.settings, options.corpora)
    keep = None if options.keep == "none" else KeptModels(place.model(run), options.keep == "all")
    with device_slot(place):
        measured = compare(options, plan, keep=keep)
    result = judge(measured, stepwise=False)
    settings = replace(plan.settings, seeds=result.seeds)
    return report(run, lambda: _report(place, run, settings, result, keep.lines if keep else ()))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a caller knows of a model beside its checkpoint."""

    corpora: Corpora = ()  # it was pretrained on, to be searched for texts of dev and test
    unsearched: Sequence[str] = ()  # a sentence for each corpus that is not searched
    # whether they hold, in other documents, the texts that the corpus of the field holds out
    has_read_held_out: bool = False


def compare(
    options: FineTuneOptions,
    plan: FineTunePlan,
    facts: Sequence[ModelFacts] | None = None,
    *,
    keep: KeptModels | None = None,
) -> Comparison:
    """Train each model with each seed and measure it; earlier runs of the same come from the workspace."""
    settings, workspace, corpora = plan.settings, options.place, options.corpora
    facts = facts or default_facts(workspace, settings, corpora)
    with _open_pool(options.running.workers, settings) as pool:
        cache = _Cache(workspace.root / "evaluations", pool, keep)
        models, baselines = finetuning.train_models(settings, plan.data, cache.train)
        if keep is not None:
            keep.choose(models, cache.train_again)
    words = domain_words(workspace, corpora.domain) if corpora.domain else ()
    result = finetuning.compare_models(plan.data, models, baselines, domain_words=words)
    measured = []
    for model, runs, known in zip(result.models, models, facts, strict=True):
        candidate = runs.candidates[0]
        read = known.corpora, known.has_read_held_out
        work = partial(measure_model, model, candidate, workspace, corpora, *read)
        measured.append(measure(candidate.name, work))
    unsearched = dict.fromkeys(line for known in facts for line in known.unsearched)
    return replace(result, models=tuple(measured), notes=(*result.notes, *unsearched))


def default_facts(
    workspace: Workspace, settings: FineTuneSettings, corpora: CorporaOptions
) -> list[ModelFacts]:
    """What each model was pretrained on, by the catalog or the options."""
    rows, facts = settings.recipes().values(), []
    for number, row in enumerate(rows):
        models = [settings.models[at] for at in row]
        # of several models the first has not read the corpus of the field
        has_read = number > 0 or len(rows) == 1
        facts.append(ModelFacts(*corpora_to_search(workspace, models, corpora, has_read_domain=has_read)))
    return facts


@dataclass(frozen=True, slots=True)
class _Cache:
    """Training whose results are kept in a folder, and not computed twice."""

    folder: Path
    pool: Executor | None  # None: one by one in this process
    keep: KeptModels | None

    def train(self, runs: Sequence[Run]) -> list[SeedRun]:
        keys = [run_key(*run) for run in runs]
        tasks: dict[str, Callable[[], SeedRun]] = {}
        for key, run in zip(keys, runs, strict=True):
            if key not in tasks:  # else a model is compared with itself
                call = f"{run.candidate.name} seed {run.seed}", partial(self._run, key, run)
                tasks[key] = partial(train, *call) if self.pool is None else train.submit(*call).result
        move = begin_progress(runs[0].candidate.data.task.name, f"of {len(runs)} runs")
        found: list[SeedRun] = []
        began = told = time.monotonic()
        for key, run in zip(keys, runs, strict=True):
            found.append(tasks[key]())
            if self.keep:
                self.keep.drop_worse(run.candidate, key, found[-1].dev_score)
            done, now = len(found), time.monotonic()
            move(done / len(runs))
            if now - told >= QUIET_SECONDS and done < len(runs):
                told, left = now, (now - began) / done * (len(runs) - done)
                say(f"{done} of {len(runs)} runs, {timedelta(seconds=round(left))} left")
        return found

    def train_again(self, run: Run) -> None:
        """Train a run whose result is cached, for its weights."""
        train(f"{run.candidate.name} seed {run.seed} again", partial(self._train, run_key(*run), run))

    def _run(self, key: str, run: Run) -> SeedRun:
        path = self.folder / f"{key}.npz"
        found = earlier = finetuning.load_run(path)
        if found is None:
            found = self._train(key, run)
            finetuning.save_run(found, path)
        (metric, score), *_ = found.result.dev.items()
        say(
            f"{run.candidate.name}, seed {run.seed} at {run.learning_rate:g}: dev {metric_name(metric)} "
            f"{100 * score:.2f}, {'from an earlier run' if earlier else f'{found.result.seconds:,.0f} s'}"
        )
        return found

    def _train(self, key: str, run: Run) -> SeedRun:
        place = self.keep.begin(key) if self.keep and run.candidate.is_pretrained else None
        work = partial(finetuning.fine_tune_one, *run, place)
        return self.pool.submit(work).result() if self.pool else work()


def _open_pool(workers: int | None, settings: FineTuneSettings) -> AbstractContextManager[Executor | None]:
    """Open a pool that shares this process's threads; None for a single process.

    By default it has no more processes than a model has seeds or rates, for the sake of memory.
    """
    runs = max(len(settings.seeds or range(finetuning.MANY_SEEDS)), len(settings.learning_rates))
    workers = min(
        workers or min(finetuning.usual_workers(), runs),
        runs * (len(settings.models) + (settings.baselines != "no")),
    )
    return worker_pool(workers, finetuning.worker_start(workers)) if workers > 1 else nullcontext()


def run_name(settings: FineTuneSettings, corpora: CorporaOptions) -> str:
    """A name that is the same for the same comparison."""
    given = {name: corpus for name, corpus in asdict(corpora).items() if corpus}
    content = json.dumps(to_jsonable_python(settings) | given, sort_keys=True)
    return f"{settings.task.name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def record(workspace: Workspace, run: str, result: Comparison) -> None:
    """Put every score into the catalog."""
    rows = [
        {
            "task": result.task,
            "model": f"{model.name}, run {number}" if number else model.name,
            "seed": one.seed,
            "learning_rate": one.learning_rate,
            "best_epoch": one.best_epoch,
            "split": split,
            "metric": metric,
            "score": value,
            "seconds": one.seconds,
        }
        for model in result.models
        for number, one in model.numbered_runs
        for split, scores in (("dev", one.dev), ("test", one.test))
        for metric, value in (scores or {}).items()
    ]
    record_evaluations(workspace, run, rows)


def _report(
    workspace: Workspace, run: str, settings: FineTuneSettings, result: Comparison, kept: Sequence[str]
) -> Reported:
    record(workspace, run, result)
    content = reports.build_report(
        title=f"Fine-tuning on {result.task}",
        command=repeat_command(),
        evaluations=[result],
        settings={"fine-tuning": settings},
        checksums=file_checksums(*settings.split_paths.values()),
    )
    return publish_report(content, workspace.report(run), kept)


if __name__ == "__main__":
    run_as_command(__file__)
