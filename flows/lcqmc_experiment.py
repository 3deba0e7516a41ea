"""lcqmc-experiment: which part of a recipe of continued pretraining helps, and which one hurts?

A base model is pretrained on general text. From it pretraining continues under a ladder of recipes, each of
which mends one thing of the one before, and all are fine-tuned on the task under the same seeds: an ALBERT,
and a BERT whose answers cost the same. What an earlier run made and nothing changed is used again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from albert import reports
from albert.evaluation import Comparison
from albert.finetuning import FineTuneSettings
from albert.pretraining import ObjectiveOptions, OptimizerOptions, PretrainResult, read_settings
from data.cleaning import DuplicateRules, GuardRules
from data.options import values_of
from data.refresh import GateRules, InstanceRules, MaskingRules
from data.sources import SourceRules
from data.tokenization import find_tokenizer, load_tokenizer
from data.workspace import Workspace
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
from flows.fine_tune import ModelFacts, compare, record, table
from flows.orchestration import (
    CorporaOptions,
    ExperimentOptions,
    FineTuneOptions,
    FineTunePlan,
    PretrainingOptions,
    device_slot,
    file_checksums,
    gather_facts,
    job,
    plan_fine_tuning,
    pretraining_plan,
    publish_report,
    repeat_command,
    run_as_command,
    step,
)
from flows.refresh_corpus import refresh_corpus

train_flawed = step("train-flawed-control")
write_texts = step("write-texts")
report = step("report")


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    """What was compared, the verdict, and where the report is."""

    comparisons: tuple[Comparison, ...]  # one an architecture
    verdict: str
    page: Path


def describe(outcome: ExperimentOutcome) -> str:
    """What a person wants to know of the result."""
    tables = [table(one) for one in outcome.comparisons]
    return "\n".join([*tables, outcome.verdict, f"report {outcome.page.resolve()}"])


@job("lcqmc-experiment", ExperimentOptions, describe, run_name="{experiment} experiment")
def lcqmc_experiment(_: ExperimentOptions, options: ExperimentOptions) -> ExperimentOutcome:
    """Make the corpora, train base models and arms, compare them, report."""
    place, experiment = Workspace(Path(options.workspace)), EXPERIMENTS[options.experiment]
    sizes, folder = experiment.sizes(options.scale), place.root / "experiments" / options.experiment
    given = ExperimentFiles(
        options.experiment, Path(options.train), Path(options.dev), Path(options.test), options.domain
    )
    texts = [*options.general, *options.domain, options.train]
    vocab = options.tokenizer or vocabulary("tiny", texts, 21128, options.workspace)
    files = write_texts(options.experiment, lambda: first_lines(given, sizes, folder))
    shared = {
        "workspace": options.workspace,
        "tokenizer": vocab,
        "workers": options.workers,
        # the corpora are what is given now, whatever they were before
        "gates": GateRules(max_lost_documents=1.0),
    }
    refresh_corpus(corpus="general", source=options.general, **shared)
    for arm in experiment.arms:
        make_corpus(arm, given, folder, shared)
    comparisons: list[Comparison] = []
    bases: list[PretrainResult] = []
    tuned: dict[str, FineTuneSettings] = {}
    for name in dict.fromkeys(options.architectures):
        base = continued_pretraining(
            corpus="general",
            init=ARCHITECTURES[name],
            steps=sizes.base_steps,
            batch_tokens=Arm.batch_tokens,
            workspace=options.workspace,
        )
        bases.append(finished(base))
        models = [base, *(train_arm(arm, base, sizes, files, place) for arm in experiment.arms)]
        plan = _fine_tuning(name, experiment.arms, models, files, sizes, options)
        result = judge(name, experiment.arms, models, files, plan, place, options.workers)
        tuned[name] = replace(plan.settings, seeds=result.seeds)
        comparisons.append(result)
    settings = _settings(sizes, experiment.arms, bases, tuned)
    verdict, page = report(
        options.experiment, lambda: _report(place, files, experiment.arms, bases, comparisons, settings)
    )
    return ExperimentOutcome(tuple(comparisons), verdict, page)


def corpus_of(arm: Arm, files: ExperimentFiles) -> str:
    """The name of an arm's corpus in the workspace."""
    return f"{files.experiment}-{arm.corpus}"


def make_corpus(arm: Arm, files: ExperimentFiles, folder: Path, shared: Mapping[str, object]) -> None:
    """The corpus of an arm; arms that differ in training alone share one."""
    guarded = (str(files.dev), str(files.test)) if arm.is_guarded else ()
    refresh_corpus(
        corpus=corpus_of(arm, files),
        source=tuple(write_sentences(arm, files, folder)),
        instances=InstanceRules(sop=arm.sop),
        masking=MaskingRules(max_ngram=arm.max_ngram),
        # questions that are alike are what LCQMC is made of
        duplicates=DuplicateRules(near=None),
        reading=SourceRules(text_format="bert" if files.experiment == "lcqmc" else "auto"),
        guard=GuardRules(files=guarded),
        **shared,
    )


def train_arm(
    arm: Arm, base: PretrainResult, sizes: Sizes, files: ExperimentFiles, place: Workspace
) -> PretrainResult:
    """Pretraining from the base model under an arm's recipe."""
    options = PretrainingOptions(
        corpus=corpus_of(arm, files),
        init=str(base.checkpoint),
        steps=sizes.tokens // arm.batch_tokens,
        batch_tokens=arm.batch_tokens,
        learning_rate=arm.learning_rate,
        optimizer=OptimizerOptions(name=arm.optimizer),
        objective=ObjectiveOptions(masking=arm.masking),
        mix=tuple(arm.mix),
        workspace=str(place.root),
    )
    if not arm.doubles_labels:
        return finished(continued_pretraining(**values_of(options)))
    return finished(train_flawed(arm.name, lambda: _train_flawed(options, place)))


def _train_flawed(options: PretrainingOptions, place: Workspace) -> PretrainResult:
    """The same on copies of the shards with the flawed labels."""
    plan = pretraining_plan(options)
    folder = place.root / "experiments" / "flawed-shards"
    tokenizer = load_tokenizer(find_tokenizer(plan.version.tokenizer, place.tokenizers))
    shards = double_labels(plan.settings.shards, folder, tokenizer)
    run = f"flawed-{plan.run}"
    settings = replace(plan.settings, shards=shards, run_folder=place.model(run))
    with device_slot(place):
        return run_pretraining(replace(plan, run=run, settings=settings))


def _fine_tuning(
    architecture: str,
    arms: tuple[Arm, ...],
    models: list[PretrainResult],
    files: ExperimentFiles,
    sizes: Sizes,
    options: ExperimentOptions,
) -> FineTunePlan:
    return plan_fine_tuning(
        FineTuneOptions(
            task=options.task or EXPERIMENTS[options.experiment].task,
            train=str(files.train),
            dev=str(files.dev),
            test=str(files.test),
            model=tuple(
                f"{architecture}: {name}={model.checkpoint}"
                for name, model in zip(("none", *(arm.name for arm in arms)), models, strict=True)
            ),
            seeds=options.seeds,
            epochs=sizes.epochs,
            learning_rate=sizes.fine_tuning_rate,
            workspace=options.workspace,
        )
    )


def judge(
    architecture: str,
    arms: tuple[Arm, ...],
    models: list[PretrainResult],
    files: ExperimentFiles,
    plan: FineTunePlan,
    place: Workspace,
    workers: int | None,
) -> Comparison:
    """The base model and each arm's, fine-tuned under the same seeds; each arm with the one before it too."""
    facts = facts_of(arms, models, files)
    corpora = CorporaOptions(domain=corpus_of(arms[-1], files), general="general")
    with device_slot(place):
        result = compare(plan, place, corpora, facts, workers=workers, stepwise=True)
    record(place, f"{files.experiment}-experiment-{architecture}", result)
    return result


def facts_of(arms: tuple[Arm, ...], models: list[PretrainResult], files: ExperimentFiles) -> list[ModelFacts]:
    """What is known of the base model and of each arm's: all have read the general corpus."""
    first = ModelFacts(note="no continued pretraining", corpora=("general",), pretraining=_history(models[0]))
    return [first] + [
        ModelFacts(
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
) -> dict[str, object]:
    """What the report tells; `tuned` by architecture, in the order of `bases`."""
    return {
        "sizes": sizes,
        **{f"arm: {arm.name}": arm for arm in arms},
        **{
            f"base model: {name}": read_settings(base.run_folder)
            for name, base in zip(tuned, bases, strict=True)
        },
        **{f"fine-tuning: {name}": one for name, one in tuned.items()},
    }


def _report(
    place: Workspace,
    files: ExperimentFiles,
    arms: tuple[Arm, ...],
    bases: list[PretrainResult],
    comparisons: list[Comparison],
    settings: dict[str, object],
) -> tuple[str, Path]:
    corpora = dict.fromkeys(["general", *(corpus_of(arm, files) for arm in arms)])
    content = reports.build_report(
        title=f"What continued pretraining does to {comparisons[0].task}, one change at a time",
        command=repeat_command(),
        corpora=gather_facts(place.root, corpora),
        bases=bases,
        evaluations=comparisons,
        checksums=file_checksums(files.train, files.dev, files.test),
        settings=settings,
    )
    return content.verdict, publish_report(content, place.report(f"{files.experiment}-experiment"))


if __name__ == "__main__":
    run_as_command(__file__)
