"""lcqmc-experiment: does a field's text help because of its subject, or would as much other text do?

From one checkpoint, pretraining continues with the same tokens, rate and batch on more general text and on
the text of each of two fields. Every arm is judged on the tasks of both fields, so each field is the other's
control. What an earlier run made is used again; what does not fit into the time is left out and named.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from time import monotonic
from typing import TypeVar

from albert import reports
from albert.checkpoints import average, find_source
from albert.evaluation import Comparison
from albert.evaluation import judge as judge_models
from albert.pretraining import PretrainResult, RunningOptions, list_checkpoints, read_settings
from albert.tasks import read_lines, suffix_of
from data.files import write_text
from data.options import values_of
from data.sources import SourceSpec
from flows.continued_pretraining import continued_pretraining
from flows.end_to_end import finished, guard_files, make_corpus, read_texts, write_files, write_rows
from flows.fine_tune import ModelFacts, compare, record
from flows.orchestration import (
    CorporaOptions,
    ExperimentOptions,
    FieldOptions,
    FineTuneOptions,
    Reported,
    TextOptions,
    describe_report,
    device_slot,
    file_checksums,
    gather_facts,
    job,
    plan_fine_tuning,
    publish_report,
    repeat_command,
    run_as_command,
    step,
    without_credentials,
)

GENERAL = "general"
FULL_STEPS = 1000  # of pretraining at scale 1
TASK_SHARE = 0.25  # of these steps, on the task's own texts
AVERAGED = 3  # last checkpoints of a run
MOST_DEV, MOST_TEST = 500, 3000  # examples; dev is scored after every epoch

T = TypeVar("T")
average_checkpoints = step("average-checkpoints")
report = step("report")
describe = describe_report


@dataclass(frozen=True, slots=True)
class Arm:
    """The checkpoints of one recipe, one for each pretraining seed."""

    name: str
    checkpoints: tuple[Path | str, ...]
    facts: ModelFacts = ModelFacts()
    history: tuple[dict[str, float], ...] = ()  # of its first pretraining run
    note: str | None = None  # shown beside its name

    @property
    def model(self) -> str:
        """The arm as fine-tune takes a model."""
        return f"{self.name}={','.join(map(str, self.checkpoints))}"


@dataclass(slots=True)
class Deadline:
    """When work must be done, in seconds of `monotonic`, and what was left out because of it."""

    end: float
    longest: float = 0.0
    left_out: list[str] = field(default_factory=list)

    def run(self, label: str, work: Callable[[], T]) -> list[T]:
        """What the work gives; nothing if the longest before it suggests that it would end too late."""
        begun = monotonic()
        if begun + self.longest >= self.end:
            self.left_out.append(label)
            return []
        result = work()
        self.longest = max(self.longest, monotonic() - begun)
        return [result]


@job(describe, run_name="experiment from {init}")
def lcqmc_experiment(_: ExperimentOptions, options: ExperimentOptions) -> Reported:
    """Make the corpora, pretrain the arms under every seed, judge them on both tasks, report."""
    begun, seconds = monotonic(), inf if options.minutes is None else 60 * options.minutes
    pretraining, judging = Deadline(begun + seconds / 2), Deadline(begun + seconds)
    make_corpora(options)
    names = (GENERAL, options.first.name, options.second.name)
    runs: list[list[PretrainResult]] = []  # of each seed, in the order of the names
    for seed in options.pretraining_seeds:
        # a seed at a time: every arm has as many runs, all of as many tokens
        arms_of_seed = (pretrain(name, options.init, options.scale, seed, options) for name in names)
        runs += pretraining.run(f"pretraining with seed {seed}", partial(list, arms_of_seed))
    arms = [arm_of(name, of_name, [name]) for name, *of_name in zip(names, *runs, strict=True)]
    comparisons = judge_all(arms, options, judging) if runs else []
    left_out = [f"Left out for lack of time: {what}." for what in pretraining.left_out + judging.left_out]
    return report("experiment", lambda: _report(options, runs, comparisons, left_out))


def make_corpora(options: ExperimentOptions) -> None:
    """A corpus of general text, and of each field one of its text and one of its task's, all guarded.

    A further file of the guard, such as the training examples, is kept out of all but the tasks' texts.
    """
    fields, folder = (options.first, options.second), options.place.experiments
    sources = {GENERAL: options.general, **{one.name: one.text for one in fields}}
    texts: dict[str, tuple[SourceSpec, ...]] = {}
    guard: list[str] = []
    for one in fields:
        # without labels and groups, as documents
        rows = [text for row in read_texts(one.task, one.train) for text in row]
        work = partial(write_rows, rows, folder / f"{one.name}-train.jsonl")
        texts[f"{one.name}-task"] = (SourceSpec(path=write_files(one.name, work), text_field="text"),)
        guard += guard_files(one.name, one.task, one.dev, one.test, folder)
    vocabulary = str(find_source(options.init).vocabulary)
    for more, of_name in ((options.guard.files, sources), ((), texts)):
        rules = replace(options.guard, files=(*more, *guard))
        for name, source in of_name.items():
            make_corpus(name, source, vocabulary, rules, TextOptions(), options)


def draw_lines(path: str, most: int, target: Path) -> str:
    """Copy the first line, maybe a header, and a draw of the others: a small one is part of a larger."""
    first, *others = read_lines(Path(path))
    Random(0).shuffle(others)
    drawn = target.with_name(f"{target.name}-{most}{suffix_of(Path(path))}")
    write_text(drawn, "\n".join([first, *others[:most]]) + "\n")
    return str(drawn)


def pretrain(corpus: str, init: str, scale: float, seed: int, options: ExperimentOptions) -> PretrainResult:
    """Continue pretraining on a corpus, if it is not the general one with some of that."""
    result = continued_pretraining(
        corpus=corpus,
        init=init,
        steps=max(round(FULL_STEPS * scale), 2),
        batch_tokens=options.batch_tokens,
        learning_rate=options.learning_rate,
        mix=() if corpus == GENERAL else (f"{GENERAL}:{options.replay}",),
        seed=seed,
        running=RunningOptions(keep_checkpoints=AVERAGED),
        workspace=options.workspace,
    )
    return finished(result)


def arm_of(
    name: str, runs: Sequence[PretrainResult], corpora: Sequence[str], *, has_read_held_out: bool = False
) -> Arm:
    """The arm of runs that have read some corpora, and the general one."""
    history = tuple(runs[0].finite_history) if runs else ()
    read = tuple((corpus, None) for corpus in dict.fromkeys((*corpora, GENERAL)))
    facts = ModelFacts(read, has_read_held_out=has_read_held_out)
    return Arm(name, tuple(run.checkpoint for run in runs), facts, history)


def judge_all(arms: Sequence[Arm], options: ExperimentOptions, deadline: Deadline) -> list[Comparison]:
    """Matched against mismatched text with each number of labels, then what else a matched arm gains from."""
    general, first, second = arms
    base = Arm("base", (options.init,))
    pairs = ((options.first, first, second), (options.second, second, first))
    found: list[Comparison] = []
    for at, labels in enumerate(options.labels):
        for one, matched, mismatched in pairs:
            most = sum(1 for _ in read_lines(Path(one.train))) - 1
            if min(labels, most) in (min(earlier, most) for earlier in options.labels[:at]):
                continue  # a small task has no other examples than with the earlier number
            # compared with the first and the one before: matched - mismatched, matched - general
            compared = [
                replace(mismatched, note="mismatched"),
                base,
                general,
                replace(matched, note="matched"),
            ]
            work = partial(judge, one, labels, compared, options)
            found += deadline.run(f"{one.task} with {labels:,} labels", work)
    for one, matched, _ in pairs:
        work = partial(judge_remedies, one, base, matched, options)
        found += deadline.run(f"averages and task texts, {one.name}", work)
    return found


def judge_remedies(one: FieldOptions, base: Arm, matched: Arm, options: ExperimentOptions) -> Comparison:
    """Training on the task's own texts after the field's, and averages of weights, beside the matched arm."""
    corpus, runs = f"{one.name}-task", [Path(path) for path in matched.checkpoints]
    scale = TASK_SHARE * options.scale
    on_task = [
        pretrain(corpus, str(run), scale, seed, options)
        for run, seed in zip(runs, options.pretraining_seeds, strict=False)
    ]
    tapt = arm_of(f"{one.name}, then task texts", on_task, [one.name, corpus], has_read_held_out=True)
    last = f"mean of the last {AVERAGED}"
    means = {last: [average_of(list_checkpoints(run.parent)[:AVERAGED], None, options) for run in runs]}
    for share in options.base_shares:
        means[f"{share:g} of base"] = [average_of([options.init, run], share, options) for run in runs]
    averaged = [replace(matched, name=name, checkpoints=tuple(paths)) for name, paths in means.items()]
    return judge(one, options.labels[0], [base, *averaged, tapt, matched], options, is_extra=True)


def average_of(sources: Sequence[Path | str], share: float | None, options: ExperimentOptions) -> Path:
    """The mean of checkpoints, the last that of a run; one made of the same weights is used again."""
    last, kind = Path(sources[-1]), "mean" if share is None else share
    weights = "".join(find_source(source).sha256 for source in sources)
    digest = hashlib.sha256(weights.encode()).hexdigest()[:8]
    target = options.place.experiments / f"{last.parent.name}-{last.name}-{kind}-{digest}"
    if not target.is_dir():
        average_checkpoints(target.name, lambda: average(sources, target, weight=share))
    return target


def judge(
    one: FieldOptions, labels: int, arms: Sequence[Arm], options: ExperimentOptions, *, is_extra: bool = False
) -> Comparison:
    """Fine-tune the arms on a field's task. The last one's difference to the first is primary with the first
    number of labels alone, and not in an extra comparison: otherwise all differences are corrected alike.
    """
    place, tuning = options.place, options.fine_tuning
    folder = place.experiments
    judging = FineTuneOptions(
        **values_of(tuning) | {"running": values_of(tuning.running) | {"workers": options.workers}},
        task=one.task,
        train=draw_lines(one.train, labels, folder / f"{one.name}-train"),
        dev=draw_lines(one.dev, MOST_DEV, folder / f"{one.name}-dev"),
        test=draw_lines(one.test, MOST_TEST, folder / f"{one.name}-test"),
        model=tuple(arm.model for arm in arms),
        workspace=options.workspace,
        corpora=CorporaOptions(domain=one.name, general=GENERAL),
    )
    plan = plan_fine_tuning(judging)
    with device_slot(place):
        result = compare(judging, plan, [arm.facts for arm in arms])
    record(place, f"experiment-{one.name}-{labels}{'-more' if is_extra else ''}", result)
    learnt = min(labels, result.examples["train"])  # a small task has fewer
    pairs = zip(result.models, arms, strict=True)
    models = tuple(replace(model, note=arm.note, pretraining=arm.history) for model, arm in pairs)
    primary = result.primary if labels == options.labels[0] and not is_extra else None
    result = replace(result, task=f"{result.task} with {learnt:,} labels", models=models, primary=primary)
    return judge_models(result, stepwise=not is_extra)


def _report(
    options: ExperimentOptions,
    runs: Sequence[Sequence[PretrainResult]],
    comparisons: Sequence[Comparison],
    left_out: Sequence[str],
) -> Reported:
    place, fields = options.place, (options.first, options.second)
    first_runs = runs[0] if runs else []
    contrasts = {
        "primary": f"matched minus mismatched text, with {options.labels[0]:,} labels, on each task",
        "secondary": "matched minus general text; all contrasts but the primary are corrected (Holm)",
    }
    content = reports.build_report(
        title=f"Pretraining on {fields[0].name} and {fields[1].name}, each judged on both tasks",
        command=repeat_command(),
        corpora=gather_facts(place, [GENERAL, *(one.name for one in fields)]),
        evaluations=comparisons,
        checksums=file_checksums(*(path for one in fields for path in (one.train, one.dev, one.test))),
        settings={
            "contrasts": contrasts,
            "experiment": without_credentials(options),
            **{f"pretraining: {run.run_folder.name}": read_settings(run.run_folder) for run in first_runs},
        },
    )
    content = replace(content, warnings=(*left_out, *content.warnings))
    return publish_report(content, place.report("experiment"))


if __name__ == "__main__":
    run_as_command(__file__)
