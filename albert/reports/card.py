"""A model card (Mitchell et al. 2019) from a run's own records, in the form of Hugging Face's Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from albert.checkpoints import CARD_FILE, HUB_PREFIX, find_source
from albert.evaluation import evaluation_titles
from albert.pretraining import PretrainResult
from albert.reports.content import Report
from albert.reports.corpus import CorpusFacts
from albert.reports.evaluation import scores_table
from albert.reports.page import flat, read_report
from albert.reports.pretraining import held_out_corpora, held_out_table, points_of, run_table
from albert.reports.sections import MISSING, Table, decimal, number, pairs_table, percent
from data.errors import InputError
from data.files import write_text

_LIMITS = (
    "It fills in masked words; it was not trained to write text or to answer questions.",
    "Held-out figures are of documents of the same corpora; they say nothing about other fields.",
    "Nobody looked for personal data, or for biases of the texts that the model may repeat.",
)


def write_card(
    checkpoint: Path,
    *,
    report: Path | None = None,
    licence: str | None = None,
    source_licences: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint's model card beside it; returns its path.

    `report` is the folder of the run's report, by default that of its workspace; `licence` the model's, as
    the Hub names it; `source_licences` are those of the texts, by corpus. Raises InputError if there is no
    checkpoint or no report of a pretraining, for an unknown corpus, and if there is a card already.
    """
    folder = find_source(checkpoint).folder
    run = folder.resolve().parent
    records = read_report(report or run.parent.parent / "reports" / run.name)
    licences = dict(source_licences or {})
    corpora = [facts.corpus for facts in records.corpora]
    if unknown := set(licences) - set(corpora):
        raise InputError(f"no corpus {min(unknown)!r} in the report: it has {', '.join(corpora) or 'none'}")
    if (folder / CARD_FILE).exists():
        raise InputError(f"{folder / CARD_FILE} is already there: remove it for a new card")
    write_text(folder / CARD_FILE, model_card(records, licence=licence, source_licences=licences))
    return folder / CARD_FILE


def model_card(report: Report, *, licence: str | None, source_licences: Mapping[str, str]) -> str:
    """The card as Markdown under a header in YAML. Raises InputError for a report without a pretraining."""
    if report.pretraining is None:
        raise InputError(f"the report {report.title!r} is of no pretraining: choose one that is")
    init = str(report.settings.get("pretraining", {}).get("init", ""))
    header: dict[str, str | list[str]] = {
        "language": ["zh"],
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["jixu", "continued-pretraining" if report.pretraining.probe else "pretraining"],
    }
    if licence:
        header["license"] = licence
    if init.startswith(HUB_PREFIX):
        header["base_model"] = init.removeprefix(HUB_PREFIX).partition("@")[0]
    parts = [f"# {report.title}", report.verdict, *_parts(report, report.pretraining, source_licences)]
    return f"---\n{yaml.safe_dump(header, allow_unicode=True)}---\n\n" + "\n\n".join(parts) + "\n"


def _parts(report: Report, result: PretrainResult, licences: Mapping[str, str]) -> Iterator[str]:
    yield "## Training text\n\n" + _corpora(report.corpora, licences).to_markdown()
    settings = flat(report.settings.get("pretraining", {}))
    recipe = {name: value for name, value in settings.items() if value and not value.startswith(("/", "["))}
    yield "## Recipe\n\n" + pairs_table(("Setting", "value"), recipe).to_markdown()
    yield run_table(result).to_markdown()
    yield "## Loss\n\n" + _curve(result).to_markdown()
    forgotten = held_out_table(result).to_markdown()
    if len(held_out_corpora(result.history)) < 2:
        forgotten += "\nNo other corpus was mixed in, so what the model forgot was not measured."
    yield "## Before and after, and forgetting\n\n" + forgotten
    yield "## Evaluation"
    titles = evaluation_titles(report.evaluations)
    for comparison, title in zip(report.evaluations, titles, strict=True):
        yield f"### {title}\n\n{scores_table(comparison).to_markdown()}"
    if not report.evaluations:
        yield "No labelled task was evaluated."
    yield "## Limits\n\n" + "\n".join(f"- {line}" for line in (*report.warnings, *result.notices, *_LIMITS))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"Made {report.created_at[:10]} with {versions}."


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
    return Table.of("", records, words=(0, 3, 4))


def _curve(result: PretrainResult) -> Table:
    accuracy = dict(points_of(result.history, "held_out_mlm_accuracy"))
    records = [
        {"step": number(step), "held-out loss": decimal(loss), "accuracy": percent(accuracy.get(step))}
        for step, loss in points_of(result.history, "held_out_mlm_loss")
    ]
    caption = "Masked-language-model loss in nats, on documents that were not trained on."
    return Table.of(caption, records, words=())
