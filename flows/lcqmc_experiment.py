"""lcqmc-experiment: which part of a recipe of continued pretraining helps, and which one hurts?

A base model is pretrained on general text. From its checkpoint pretraining goes on under a ladder of recipes,
each of which mends one thing of the one before, and all are fine-tuned on the task under the same seeds: an
ALBERT, and a BERT whose answers cost the same. Whatever was made before, and has not changed, is not made
again.
"""

from flows.orchestration import run_if_main

run_if_main(__name__)

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

from prefect import flow
from pydantic import Field

from albert.evaluation import Comparison
from albert.finetuning import FineTuneSettings
from albert.pretraining import PretrainResult, read_settings
from albert.reports import build_report, write_report
from data.catalog import open_workspace
from data.tokenization import find_tokenizer, load_tokenizer
from data.workspace import Workspace, default_place
from flows.continued_pretraining import continued_pretraining, run_pretraining
from flows.end_to_end import finished, vocabulary
from flows.experiment import (
    ARCHITECTURES,
    EXPERIMENTS,
    Arm,
    ExperimentFiles,
    Sizes,
    double_labels,
    first_lines,
    write_sentences,
)
from flows.fine_tune import Told, compare, record, table
from flows.orchestration import (
    Known,
    cancelled_with_its_parts,
    checked,
    device_slot,
    documented,
    ends_with_its_worker,
    file_checksums,
    fine_tune_settings,
    gather_facts,
    in_working_copy,
    log,
    plain,
    pretraining_plan,
    publish_report,
    repeat_command,
    step,
)
from flows.refresh_corpus import refresh_corpus

train_flawed = step("train-flawed-control")
write_texts = step("write-texts")
report = step("report")


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    comparisons: tuple[Comparison, ...]  # one an architecture
    verdict: str
    page: Path


@flow(name="lcqmc-experiment", flow_run_name="{experiment} experiment")
@documented
@ends_with_its_worker
@cancelled_with_its_parts
@in_working_copy
@checked
def lcqmc_experiment(
    general: Annotated[list[str], Field(description="General raw text, for the base models (通用语料)")],
    train: Annotated[str, Field(description="Training examples of the task (训练集)")],
    dev: Annotated[str, Field(description="Its dev examples (开发集)")],
    test: Annotated[str, Field(description="Its test examples (测试集)")],
    experiment: Annotated[
        Literal["lcqmc", "law", "reviews"], Field(description="Ladder of recipes; lcqmc's text is the task's")
    ] = "lcqmc",
    domain: Annotated[
        list[str], Field(description="Raw text of the field, for law and reviews (领域语料)")
    ] = [],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    task: Annotated[str | None, Field(description="Name or YAML file; the experiment's (任务)")] = None,
    tokenizer: Annotated[
        str | None, Field(description="vocab.txt; the flawed control needs BERT's. Trained if empty (词表)")
    ] = None,
    architectures: Annotated[
        list[Literal["albert", "bert"]], Field(min_length=1, description="Of similar cost (模型)")
    ] = ["albert", "bert"],  # noqa: B006
    scale: Annotated[
        float, Field(gt=0, description="Of all sizes; 1 is 60 to 80 CPU minutes an architecture")
    ] = 1.0,
    seeds: Annotated[
        list[int], Field(min_length=1, description="Every model is fine-tuned with each (随机种子)")
    ] = [0, 1, 2, 3, 4],  # noqa: B006
    workers: Annotated[int | None, Field(ge=1, description="Processes; all cores if empty")] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
) -> ExperimentOutcome:
    """General text, text of the field and a task -> what each part of the recipe is worth."""
    place, sizes = Workspace(Path(workspace)), EXPERIMENTS[experiment].sizes(scale)
    folder = place.root / "experiments" / experiment
    given = ExperimentFiles(experiment, Path(train), Path(dev), Path(test), tuple(domain))
    vocab = tokenizer or vocabulary("tiny", [*general, *domain, train], 21128, workspace)
    files = write_texts(experiment, lambda: first_lines(given, sizes, folder))
    shared = {"workspace": workspace, "tokenizer": vocab, "max_seq_length": 128, "workers": workers}
    shared["max_lost_documents"] = 1.0  # the corpora are what is given now, whatever they were before
    refresh_corpus(corpus="general", source=general, **shared)
    arms = EXPERIMENTS[experiment].arms
    for arm in arms:
        make_corpus(arm, given, folder, shared)
    comparisons, bases, tuned = [], [], {}
    for name in dict.fromkeys(architectures):
        base = finished(
            continued_pretraining(
                corpus="general",
                init=ARCHITECTURES[name],
                steps=sizes.base_steps,
                batch_tokens=Arm.batch_tokens,
                workspace=workspace,
            )
        )
        bases.append(base)
        models = [base, *(go_on(arm, base, sizes, files, place) for arm in arms)]
        tuned[name] = _fine_tuning(
            name, arms, models, files, task or EXPERIMENTS[experiment].task, sizes, seeds
        )
        comparisons.append(judge(name, arms, models, files, tuned[name], place, workers))
    settings = _settings(sizes, arms, bases, tuned)
    verdict, page = report(experiment, lambda: _report(place, files, arms, bases, comparisons, settings))
    outcome = ExperimentOutcome(tuple(comparisons), verdict, page)
    log(describe(outcome))
    return outcome


def corpus_of(arm: Arm, files: ExperimentFiles) -> str:
    """The name of an arm's corpus in the workspace."""
    return f"{files.experiment}-{arm.corpus}"


def make_corpus(arm: Arm, files: ExperimentFiles, folder: Path, shared: dict[str, object]) -> None:
    """The corpus of an arm; arms that differ in training alone share one."""
    texts = write_sentences(arm, files, folder)
    refresh_corpus(
        corpus=corpus_of(arm, files),
        source=texts,
        sop=arm.sop,
        max_ngram=arm.max_ngram,
        # questions that are alike are what LCQMC is made of
        near_duplicates="off",
        text_format="bert" if files.experiment == "lcqmc" else "auto",
        guard=[str(files.dev), str(files.test)] if arm.is_guarded else None,
        **shared,
    )


def go_on(
    arm: Arm, base: PretrainResult, sizes: Sizes, files: ExperimentFiles, place: Workspace
) -> PretrainResult:
    """Pretraining from the base model under an arm's recipe."""
    parameters = {
        "corpus": corpus_of(arm, files),
        "init": str(base.checkpoint),
        "steps": sizes.tokens // arm.batch_tokens,
        "batch_tokens": arm.batch_tokens,
        "optimizer": arm.optimizer,
        "learning_rate": arm.learning_rate,
        "masking": arm.masking,
        "mix": list(arm.mix),
        "workspace": str(place.root),
    }
    if not arm.doubles_labels:
        return finished(continued_pretraining(**parameters))
    return finished(train_flawed(arm.name, lambda: _train_flawed(parameters, place)))


def _train_flawed(parameters: dict[str, object], place: Workspace) -> PretrainResult:
    """The same on copies of the shards with the flawed labels."""
    plan = pretraining_plan(seed=0, precision="bf16", **parameters)
    folder = place.root / "experiments" / "flawed-shards"
    shards = double_labels(
        plan.settings.shards, folder, load_tokenizer(find_tokenizer(plan.version.tokenizer, place.tokenizers))
    )
    run = f"flawed-{plan.run}"
    settings = replace(plan.settings, shards=shards, run_folder=place.model(run))
    with device_slot(place):
        return run_pretraining(replace(plan, run=run, settings=settings))


def _fine_tuning(
    architecture: str,
    arms: tuple[Arm, ...],
    models: list[PretrainResult],
    files: ExperimentFiles,
    task: str,
    sizes: Sizes,
    seeds: list[int],
) -> FineTuneSettings:
    return fine_tune_settings(
        task=task,
        train=str(files.train),
        dev=str(files.dev),
        test=str(files.test),
        model=[str(model.checkpoint) for model in models],
        names=[f"{architecture}: none", *(f"{architecture}: {arm.name}" for arm in arms)],
        seeds=seeds,
        epochs=sizes.epochs,
        learning_rate=sizes.fine_tuning_rate,
    )


def judge(
    architecture: str,
    arms: tuple[Arm, ...],
    models: list[PretrainResult],
    files: ExperimentFiles,
    settings: FineTuneSettings,
    place: Workspace,
    workers: int | None,
) -> Comparison:
    """The base model and each arm's, fine-tuned under the same seeds; each arm with the one before it too."""
    told = tell(arms, models, files)
    known = Known(corpus=corpus_of(arms[-1], files), general="general")
    with device_slot(place):
        result = compare(settings, place, known, told, workers=workers, stepwise=True)
    record(place, f"{files.experiment}-experiment-{architecture}", result)
    return result


def tell(arms: tuple[Arm, ...], models: list[PretrainResult], files: ExperimentFiles) -> list[Told]:
    """What is known of the base model and of each arm's: all have read the general corpus."""
    first = Told(note="no continued pretraining", corpora=("general",), pretraining=_history(models[0]))
    return [first] + [
        Told(
            note=arm.note,
            corpora=("general", corpus_of(arm, files)),
            # its documents are made of sentences that are documents by themselves in the last arm's corpus
            has_read_held_out=arm.documents == "grouped",
            pretraining=_history(model),
        )
        for arm, model in zip(arms, models[1:], strict=True)
    ]


def _history(result: PretrainResult) -> tuple[dict[str, float], ...]:
    """The records of a run without what is no number: under a rate too large a loss may be infinite."""
    return tuple(
        {name: value for name, value in record.items() if isinstance(value, (int, float)) and isfinite(value)}
        for record in result.history
    )


def _settings(
    sizes: Sizes, arms: tuple[Arm, ...], bases: list[PretrainResult], tuned: dict[str, FineTuneSettings]
) -> dict[str, dict[str, object]]:
    """What the report tells; `tuned` by architecture, in the order of `bases`."""
    return {
        "sizes": plain(sizes),
        **{f"arm: {arm.name}": plain(arm) for arm in arms},
        **{
            f"base model: {name}": plain(read_settings(base.run_folder))
            for name, base in zip(tuned, bases, strict=True)
        },
        **{f"fine-tuning: {name}": plain(one) for name, one in tuned.items()},
    }


def _report(
    place: Workspace,
    files: ExperimentFiles,
    arms: tuple[Arm, ...],
    bases: list[PretrainResult],
    comparisons: list[Comparison],
    settings: dict[str, dict[str, object]],
) -> tuple[str, Path]:
    corpora = dict.fromkeys(["general", *(corpus_of(arm, files) for arm in arms)])
    with open_workspace(place.root) as statistics:
        facts = [gather_facts(statistics, corpus) for corpus in corpora]
    content = build_report(
        title=f"What continued pretraining does to {comparisons[0].task}, one change at a time",
        command=repeat_command(),
        corpora=facts,
        bases=bases,
        evaluations=comparisons,
        checksums=file_checksums(files.train, files.dev, files.test),
        settings=settings,
    )
    page = write_report(content, place.report(f"{files.experiment}-experiment"))
    publish_report(content, page)
    return content.verdict, page


def describe(outcome: ExperimentOutcome) -> str:
    """What a person wants to know of the result."""
    tables = [table(one) for one in outcome.comparisons]
    return "\n".join([*tables, outcome.verdict, f"report {outcome.page.resolve()}"])
