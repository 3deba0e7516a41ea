"""A model card (Mitchell et al. 2019) from a run's own records, in the form of Hugging Face's Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import ne
from pathlib import Path

import yaml

from albert.checkpoints import CARD_FILE, HUB_PREFIX, TASK_FILE, read_checkpoint
from albert.evaluation import metric_name
from albert.finetuning import FineTuned, read_fine_tuned
from albert.model import AlbertConfig
from albert.pretraining import MANIFEST_FILE, PretrainResult, read_trainer_state
from albert.reports.content import Report
from albert.reports.corpus import CorpusFacts
from albert.reports.page import flat, read_report, score_tables
from albert.reports.pretraining import held_out_corpora, held_out_table, points_of, run_table
from albert.reports.sections import MISSING, Table, counted, decimal, number, pairs_table, percent, points
from albert.reports.verdict import verdict
from albert.tasks import Kind
from data.errors import InputError
from data.files import write_text

# the Hub's names of tasks; every other kind is text classification
_PIPELINES = {
    Kind.SPAN: "question-answering",
    Kind.TOKENS: "token-classification",
    Kind.CHOICE: "multiple-choice",
}
_LIMITS = (
    "It fills in masked words; it was not trained to write text or to answer questions.",
    "Held-out figures are of documents of the same corpora; they say nothing about other fields.",
    "Nobody looked for personal data, or for biases of the texts that the model may repeat.",
)
_FINE_TUNED_LIMITS = (
    "Scores are of texts like the labelled ones; they say nothing about texts of another kind or time.",
    _LIMITS[-1],
)
_Own = tuple[Mapping[str, object], Sequence[str], Sequence[str]]  # a kind's header, parts and limits


def write_card(
    checkpoint: Path,
    *,
    report: Path | None = None,
    licence: str | None = None,
    source_licences: Mapping[str, str] | None = None,
) -> Path:
    """Write the model card of a checkpoint, or of a fine-tuned model, beside it; returns its path.

    `report` is the folder of the run's report, by default that of its workspace; `licence` the model's, as
    the Hub names it; `source_licences` are those of the texts, by corpus. Raises InputError if there is no
    checkpoint or no report of how it was made, for an unknown corpus, and if there is a card already.
    """
    read = read_checkpoint(checkpoint)
    folder = read.source.folder
    run = folder.resolve().parent
    records = read_report(report or run.parent.parent / "reports" / run.name)
    licences = dict(source_licences or {})
    corpora = [facts.corpus for facts in records.corpora]
    if unknown := set(licences) - set(corpora):
        raise InputError(f"no corpus {min(unknown)!r} in the report: it has {', '.join(corpora) or 'none'}")
    if (folder / CARD_FILE).exists():
        raise InputError(f"{folder / CARD_FILE} is already there: remove it for a new card")
    if (folder / TASK_FILE).is_file():
        header, parts, limits = _of_fine_tuning(records, read_fine_tuned(folder), read.config)
    else:
        header, parts, limits = _of_pretraining(records, folder, licences)
    library = "jixu" if read.config.file_format == "jixu" else "transformers"
    header = {**header, "library_name": library, "license": licence}
    write_text(folder / CARD_FILE, _card(records, header, parts, limits))
    return folder / CARD_FILE


def _of_pretraining(report: Report, folder: Path, licences: Mapping[str, str]) -> _Own:
    runs = {one.run_folder.name: one for one in (*report.bases, report.pretraining) if one}
    result = runs.get(folder.resolve().parent.name, report.pretraining)
    if result is None:
        raise InputError(f"the report {report.title!r} is of no pretraining: choose one that is")
    is_judged = result is report.pretraining
    if (folder / MANIFEST_FILE).is_file():  # it may be an earlier one than the run's last
        state = read_trainer_state(folder)
        is_judged &= state.step == result.steps
        own = replace(result, steps=state.step, tokens=state.tokens, history=state.history)
        if any(map(ne, own.finite_history, result.finite_history)):
            raise InputError(f"the report {report.title!r} is not of {folder}'s run: choose its own run's")
        result = own
    settings = flat(
        report.settings.get(f"pretraining: {result.run_folder.name}")
        or report.settings.get("pretraining", {})
    )
    start = settings.get("init", "")
    header = {
        "pipeline_tag": "fill-mask",
        "tags": ["jixu", "continued-pretraining" if result.probe else "pretraining"],
        "base_model": _on_hub(start),
    }
    settings["init"] = "/".join(Path(start).parts[-2:])
    hidden = {"run_folder", "never_trained_share", *({"init_weights"} if result.probe else ())}
    recipe = {
        name: value
        for name, value in settings.items()
        if value and name not in hidden and not value.startswith("/")
    }
    forgotten = held_out_table(result).to_markdown()
    if len(held_out_corpora(result.history)) < 2:
        forgotten += "\nNo other corpus was mixed in, so what the model forgot was not measured."
    parts = (
        report.verdict if is_judged else verdict(result, ()),
        "## Training text\n\n" + _corpora(report.corpora, licences).to_markdown(),
        "## Recipe\n\n" + pairs_table(("Setting", "value"), recipe).to_markdown(),
        run_table(result).to_markdown(),
        "## Loss\n\n" + _curve(result).to_markdown(),
        "## Before and after, and forgetting\n\n" + forgotten,
    )
    return header, parts, (*result.notices, *_LIMITS)


def _of_fine_tuning(report: Report, record: FineTuned, config: AlbertConfig) -> _Own:
    if not report.evaluations:
        raise InputError(f"the report {report.title!r} is of no fine-tuning: choose one that is")
    task = record.task
    compared = [model for one in report.evaluations if one.task == task.name for model in one.models]
    row = next((model for model in compared if record.checksum in model.checksums), None)
    if row is None:
        raise InputError(
            f"the report {report.title!r} has no scores of {record.checkpoint}, which this model was made "
            "from: choose its own run's report"
        )
    header = {
        "pipeline_tag": _PIPELINES.get(task.kind or Kind.SINGLE, "text-classification"),
        "tags": ["jixu", task.name],
        "base_model": _on_hub(record.checkpoint),
    }
    facts = {
        "task": f"{task.name} ({task.kind})",
        "labels": ", ".join(record.labels) or MISSING,
        "from": record.checkpoint,
        "learning rate": f"{record.learning_rate:g}",
        "seed": str(record.seed),
        "epochs, to the best on dev": str(record.best_epoch),
        "longest text in tokens": str(record.running.max_seq_length),
        "how to open it": record.opened_with(config),
    } | {f"dev {metric_name(name)}": points(score) for name, score in record.dev.items()}
    mean = f"Its row below is the mean of {counted(len(row.seeds), 'run')}"
    metric, score = next(iter(record.dev.items()))
    if len(row.seeds) > 1 and score >= max(run.dev[metric] for run in row.seeds):
        mean += "; this one was the best on dev, which flatters it"
    this_model = "## This model\n\n" + pairs_table(("", ""), facts).to_markdown()
    return header, (report.verdict, this_model, f"{mean}."), _FINE_TUNED_LIMITS


def _on_hub(start: str) -> str | None:
    """The Hub's name of the model that training began from, if it came from there."""
    return start.removeprefix(HUB_PREFIX).partition("@")[0] if start.startswith(HUB_PREFIX) else None


def _card(report: Report, header: Mapping[str, object], parts: Sequence[str], limits: Sequence[str]) -> str:
    """The card as Markdown under a header in YAML: the parts, and what every card has around them."""
    given = {name: value for name, value in header.items() if value} | {"language": ["zh"]}
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    text = [
        f"# {report.title}",
        *parts,
        "## Evaluation",
        *(
            score_tables(report.evaluations)
            or ["The report that this card was made from evaluates no labelled task."]
        ),
        "## Limits\n\n" + "\n".join(f"- {line}" for line in (*report.warnings, *limits)),
        f"Made {report.created_at[:10]} with {versions}.",
    ]
    return f"---\n{yaml.safe_dump(given, allow_unicode=True)}---\n\n" + "\n\n".join(text) + "\n"


def _corpora(corpora: tuple[CorpusFacts, ...], licences: Mapping[str, str]) -> Table:
    records = [
        {
            "Corpus": f"{facts.corpus}, version {facts.version}",
            "documents": number(facts.totals.get("documents")),
            "tokens": number(facts.totals.get("tokens")),
            "sources": ", ".join(facts.sources) or MISSING,
            "licence of the texts": licences.get(facts.corpus, "not stated"),
        }
        for facts in corpora
    ]
    return Table.of("", records, words=("Corpus", "sources", "licence of the texts"))


def _curve(result: PretrainResult) -> Table:
    accuracy = dict(points_of(result.history, "held_out_mlm_accuracy"))
    records = [
        {"step": number(step), "held-out loss": decimal(loss), "accuracy": percent(accuracy.get(step))}
        for step, loss in points_of(result.history, "held_out_mlm_loss")
    ]
    tokens = points_of(result.history, "held_out_masked_tokens")
    caption = "Masked-language-model loss in nats, on documents that were not trained on"
    caption += f": {number(tokens[0][1])} masked tokens." if tokens else "."
    return Table.of(caption, records, words=())
