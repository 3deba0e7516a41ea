"""fine-tune: models and a labelled task -> each model trained under the same seeds, and a comparison."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
from data.catalog import record_evaluations
from data.workers import worker_pool
from data.workspace import Workspace
from flows.orchestration import (
    FineTuneOptions,
    FineTunePlan,
    ReferenceCorpora,
    begin_progress,
    device_slot,
    domain_words,
    job,
    measure_model,
    plain,
    publish_report,
    repeat_command,
    run_as_command,
    step,
)

train = step("fine-tune-model")
measure = step("measure-model")
report = step("report")


@dataclass(frozen=True, slots=True)
class FineTuneOutcome:
    """A comparison, and where its report is."""

    run: str
    result: Comparison
    page: Path


def table(result: Comparison) -> str:
    """The comparison as lines of text."""
    lines = []
    for model in (*result.models, *result.baselines):
        scores = model.reported
        shown = [("dev", result.metric, model.dev[result.metric])]
        shown += [(result.split, metric, summary) for metric, summary in scores.items()]
        kind = "baseline, " if model in result.baselines else ""
        line = f"{kind}{model.name}: " + ", ".join(
            f"{split} {metric.replace('_', ' ')} {100 * one.mean:.2f} ± {100 * one.deviation:.2f}"
            for split, metric, one in dict.fromkeys(shown)
        )
        difference = result.difference(model.name)
        if difference is not None:
            line += f" ({100 * difference.mean:+.2f}"
            if difference.low is not None and difference.high is not None and difference.probability:
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


@job("fine-tune", FineTuneOptions, describe, flow_run_name="fine-tune on {task}")
def fine_tune(options: FineTuneOptions, plan: FineTunePlan) -> FineTuneOutcome:
    """Fine-tune every model with every seed, score them, and leave a report."""
    place = Workspace(Path(options.workspace))
    corpora = ReferenceCorpora(options.corpora.domain, options.corpora.general)
    with device_slot(place):
        result = compare(plan, place, corpora, workers=options.running.workers)
    run = options.run or run_name(plan.settings)
    page = report(run, lambda: _report(place, run, plan.settings, result))
    return FineTuneOutcome(run, result, page)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a caller knows of a model beside its checkpoint."""

    note: str | None = None
    corpora: tuple[str, ...] = ()  # it was pretrained on, to be searched for texts of dev and test
    # whether they hold, in other documents, the texts that the corpus of the field holds out
    has_read_held_out: bool = False
    pretraining: tuple[dict[str, float], ...] = ()

    def corpora_to_probe(self, corpora: ReferenceCorpora) -> ReferenceCorpora:
        """The corpora to measure the model on: not one whose held-out texts it was trained on."""
        return replace(corpora, domain=None) if self.has_read_held_out else corpora


def compare(
    plan: FineTunePlan,
    workspace: Workspace,
    corpora: ReferenceCorpora,
    facts: Sequence[ModelFacts] | None = None,
    *,
    workers: int | None = None,
    stepwise: bool = False,
) -> Comparison:
    """Train each model with each seed and compare them; earlier runs of the same come from the workspace."""
    settings = plan.settings
    facts = facts or default_facts(corpora, len(settings.models))
    move = begin_progress(settings.task.name, f"of {len(facts)} models")
    models: list[ModelRuns] = []
    at_once = max(len(settings.seeds), len(settings.learning_rates))
    with _open_pool(workers, at_once) as pool:
        for number, model in enumerate(facts):
            models.append(_model_runs(plan, number, workspace, corpora, model, pool))
            move(len(models) / len(facts))
        baselines = finetuning.baseline_runs(
            models[0].candidate, _Cache(workspace.root / "evaluations", pool).train
        )
    words = domain_words(workspace.root, corpora.domain) if corpora.domain else ()
    return finetuning.compare_models(plan.data, models, baselines, domain_words=words, stepwise=stepwise)


def default_facts(corpora: ReferenceCorpora, models: int) -> list[ModelFacts]:
    """All models have read the general corpus; all but the first of several that of the field too."""
    general = ModelFacts(corpora=(corpora.general,) if corpora.general else ())
    both = ModelFacts(corpora=tuple(name for name in (corpora.general, corpora.domain) if name))
    return [both] if models == 1 else [general, *[both] * (models - 1)]


def _model_runs(
    plan: FineTunePlan,
    number: int,
    workspace: Workspace,
    corpora: ReferenceCorpora,
    facts: ModelFacts,
    pool: Executor | None,
) -> ModelRuns:
    candidate = finetuning.prepare(plan.settings, plan.data, number)
    cache = _Cache(workspace.root / "evaluations", pool)
    runs, points = finetuning.fine_tune_model(candidate, cache.train)
    model = ModelRuns(
        candidate=candidate, runs=runs, sweep=points, note=facts.note, pretraining=facts.pretraining
    )
    probed = facts.corpora_to_probe(corpora)
    measured = measure(candidate.name, lambda: measure_model(candidate, workspace, probed, facts.corpora))
    return replace(
        model, cost=measured.cost, contamination=measured.contamination, intrinsic=measured.intrinsic
    )


@dataclass(frozen=True, slots=True)
class _Cache:
    """Training whose results are kept in a folder, and not computed twice."""

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
    """Open a pool that shares this process's threads, at most one process a run; None for a single one."""
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


if __name__ == "__main__":
    run_as_command(__file__)
