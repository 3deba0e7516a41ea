"""end-to-end: raw general and domain text and a labelled task -> did continued pretraining help? All in one
run.

A base model is pretrained on the general text (or given), pretraining goes on on the domain text, and both
are fine-tuned on the task under the same seeds. One report tells it all.
"""

from flows.orchestration import run_if_main

run_if_main(__name__)

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from prefect import flow, runtime
from prefect.exceptions import CancelledRun
from pydantic import Field

from albert.checkpoints import find_source, names_checkpoint
from albert.evaluation import Comparison
from albert.pretraining import PretrainResult, read_settings
from albert.reports import build_report, write_report
from data.catalog import open_workspace
from data.storage import is_remote
from data.tokenization import find_tokenizer
from data.workspace import Workspace, default_place
from flows.continued_pretraining import continued_pretraining
from flows.fine_tune import fine_tune
from flows.fine_tune import table as comparison_table
from flows.orchestration import (
    cancelled_with_its_parts,
    checked,
    documented,
    ends_with_its_worker,
    file_checksums,
    fine_tune_settings,
    gather_facts,
    in_working_copy,
    is_deployed,
    log,
    plain,
    publish_report,
    repeat_command,
    step,
)
from flows.refresh_corpus import refresh_corpus
from flows.train_tokenizer import train_tokenizer

report = step("report")


@dataclass(frozen=True, slots=True)
class EndToEndOutcome:
    base: PretrainResult | None
    continued: PretrainResult
    comparison: Comparison
    verdict: str
    page: Path


def demo_parameters() -> dict[str, object]:
    """The samples that come with jixu, and sizes under which they take about two minutes on two cores."""
    samples = Path(str(resources.files("data.samples")))
    return {
        "general": [str(samples / "general.txt")],
        "domain": [str(samples / "tea.jsonl")],
        "task": "tea-topics",
        **{split: str(samples / f"tea_topics_{split}.tsv") for split in ("train", "dev", "test")},
        "vocab_size": 4000,
        "base_steps": 200,
        "steps": 100,
        "batch_tokens": 2048,
        # the base model has seen so little that going on from it is nearly a start
        "pretraining_rate": 2e-4,
        # a small corpus, so many epochs: cut four ways, its sentence pairs are harder to learn by heart
        "copies": 4,
        "epochs": 8,
        "batch_size": 16,
        # small models trained for a minute take a larger rate than published ones
        "learning_rate": 5e-4,
    }


def run_name() -> str:
    """What a run is called: by its task, the sample's in a demonstration."""
    return f"end to end on {runtime.flow_run.parameters.get('task') or demo_parameters()['task']}"


@flow(name="end-to-end", flow_run_name=run_name)
@documented
@ends_with_its_worker
@cancelled_with_its_parts
@in_working_copy
@checked
def end_to_end(
    demo: Annotated[bool, Field(description="On the samples that come with jixu")] = False,
    general: Annotated[list[str], Field(description="General raw text, for the base model (通用语料)")] = [],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    domain: Annotated[list[str], Field(description="Raw text of the field to go on with (领域语料)")] = [],  # noqa: B006
    task: Annotated[str | None, Field(description="Name or YAML file of the task that judges (任务)")] = None,
    train: Annotated[str | None, Field(description="Its training examples (训练集)")] = None,
    dev: Annotated[str | None, Field(description="Its dev examples (开发集)")] = None,
    test: Annotated[str | None, Field(description="Its test examples (测试集)")] = None,
    init: Annotated[
        str, Field(description="Preset, or a checkpoint in place of the base model (起点)")
    ] = "tiny",
    tokenizer: Annotated[
        str | None, Field(description="Vocabulary; trained, or the checkpoint's, if empty (词表)")
    ] = None,
    vocab_size: Annotated[int, Field(ge=100, le=250_000, description="Of a trained vocabulary")] = 21128,
    base_steps: Annotated[int, Field(ge=1, description="On the general text (步数)")] = 1000,
    steps: Annotated[int, Field(ge=1, description="On the text of the field (步数)")] = 1000,
    batch_tokens: Annotated[int, Field(ge=128, description="Tokens to a step of pretraining")] = 4096,
    pretraining_rate: Annotated[
        float | None, Field(gt=0, description="Peak rate of both pretrainings; by the batch if empty")
    ] = None,
    max_seq_length: Annotated[int, Field(ge=16, le=512, description="Tokens to an instance at most")] = 128,
    copies: Annotated[int, Field(ge=1, le=100, description="Times a document is cut into instances")] = 1,
    max_unknown_share: Annotated[
        float | None, Field(ge=0, le=1, description="A corpus with more [UNK] is refused; 0.2 if empty")
    ] = None,
    seeds: Annotated[list[int], Field(min_length=1, description="Of fine-tuning (随机种子)")] = [0, 1, 2],  # noqa: B006
    epochs: Annotated[int, Field(ge=1, description="Of fine-tuning (轮数)")] = 3,
    batch_size: Annotated[int, Field(ge=1, description="Of fine-tuning")] = 32,
    learning_rate: Annotated[float, Field(gt=0, lt=1, description="Of fine-tuning (学习率)")] = 1e-4,
    workers: Annotated[int | None, Field(ge=1, description="Processes; all cores if empty")] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
) -> EndToEndOutcome:
    """Raw text to evaluation report: tokenizer, corpora, base model, continued pretraining, comparison."""
    if demo:
        return end_to_end.fn(seeds=seeds, workers=workers, workspace=workspace, **demo_parameters())
    shared = {
        "workspace": workspace,
        "max_seq_length": max_seq_length,
        "copies": copies,
        "max_unknown_share": max_unknown_share,
        # these corpora are what is given now, whatever they were in another run
        "max_lost_documents": 1.0,
        "workers": workers,
    }
    tokenizer = tokenizer or vocabulary(init, [*general, *domain], vocab_size, workspace)
    training = {"workspace": workspace, "batch_tokens": batch_tokens, "learning_rate": pretraining_rate}
    base = None
    if general:
        refresh_corpus(corpus="general", source=general, tokenizer=tokenizer, **shared)
        base = finished(continued_pretraining(corpus="general", init=init, steps=base_steps, **training))
    refresh_corpus(corpus="domain", source=domain, tokenizer=tokenizer, **shared)
    start = str(base.checkpoint) if base else init
    continued = finished(continued_pretraining(corpus="domain", init=start, steps=steps, **training))
    judged = {
        "task": task,
        "train": train,
        "dev": dev,
        "test": test,
        "model": [start, str(continued.checkpoint)],
        "seeds": seeds,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "names": ["base model", "continued"],
        "max_seq_length": max_seq_length,
    }
    known = {"corpus": "domain", "general": "general" if general else None}
    compared = fine_tune(workspace=workspace, workers=workers, **known, **judged)
    corpora = ["general", "domain"] if general else ["domain"]
    verdict, page = report(
        str(task),
        lambda: _report(Workspace(Path(workspace)), corpora, base, continued, compared.result, judged),
    )
    outcome = EndToEndOutcome(base, continued, compared.result, verdict, page)
    log(describe(outcome))
    return outcome


def finished(result: PretrainResult) -> PretrainResult:
    """The result of a whole pretraining; one that was asked to stop stops what comes after it too."""
    if result.status == "interrupted":
        raise CancelledRun if is_deployed() else KeyboardInterrupt
    return result


def vocabulary(init: str, sources: Sequence[str], vocab_size: int, workspace: str) -> str:
    """The checkpoint's own vocabulary, or one learnt from the sources, made once for them in a workspace."""
    if names_checkpoint(init):
        return str(find_tokenizer(str(find_source(init).folder)))
    places = sorted(one if is_remote(one) else str(Path(one).resolve()) for one in sources)
    name = f"end-to-end-{vocab_size}-{hashlib.sha256(json.dumps(places).encode()).hexdigest()[:8]}"
    if not (Workspace(Path(workspace)).tokenizers / name).is_dir():
        train_tokenizer(source=list(sources), vocab_size=vocab_size, name=name, workspace=workspace)
    return name


def _report(
    workspace: Workspace,
    corpora: Sequence[str],
    base: PretrainResult | None,
    continued: PretrainResult,
    result: Comparison,
    judged: dict[str, object],
) -> tuple[str, Path]:
    with open_workspace(workspace.root) as statistics:
        facts = [gather_facts(statistics, corpus) for corpus in corpora]
    content = build_report(
        title=f"Did continued pretraining help on {result.task}?",
        command=repeat_command(),
        corpora=facts,
        bases=[base] if base else [],
        pretraining=continued,
        evaluations=[result],
        settings={
            **{
                f"pretraining: {run.run_folder.name}": plain(read_settings(run.run_folder))
                for run in (base, continued)
                if run
            },
            "fine-tuning": plain(fine_tune_settings(**judged)),
        },
        checksums=file_checksums(*(judged[split] for split in ("train", "dev", "test"))),
    )
    page = write_report(content, workspace.report(f"end-to-end-{result.task}"))
    publish_report(content, page)
    return content.verdict, page


def describe(outcome: EndToEndOutcome) -> str:
    """Five lines and where the report is."""

    def losses(name: str, run: PretrainResult) -> str:
        before, after = run.evaluations()[0], run.evaluations()[-1]
        return (
            f"{name}: {run.steps:,} steps, {run.tokens_per_second:,.0f} tokens/s, held-out MLM loss "
            f"{before['held_out_mlm_loss']:.3f} -> {after['held_out_mlm_loss']:.3f}"
        )

    lines = [losses("base model", outcome.base)] if outcome.base else []
    lines += [losses("continued", outcome.continued), comparison_table(outcome.comparison), outcome.verdict]
    return "\n".join([*lines, f"report {outcome.page.resolve()}"])
