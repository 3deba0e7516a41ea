"""What a report says: facts about the corpora, the training and the evaluation, and the one-sentence
verdict.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata

import torch

from albert.finetuning import FineTuneResult
from albert.pretraining import PretrainResult

_PACKAGES = (
    "jixu",
    "torch",
    "triton",
    "prefect",
    "duckdb",
    "jieba",
    "tokenizers",
    "sentencepiece",
    "numpy",
    "pyarrow",
)


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """What is to be told of a corpus version. Gathered by the caller: this package knows no catalog."""

    corpus: str
    version: int
    totals: Mapping[str, int]  # documents, characters, words, sentences, instances, tokens
    sop: bool
    unknown_share: float  # of [UNK] among the tokens
    funnel: Sequence[Mapping[str, object]]  # rows of the catalog's funnel
    lengths: Sequence[tuple[int, int]]  # (longest of the bar in tokens, instances)
    word_lengths: Sequence[tuple[int, int]]  # (characters, words)
    top_words: Sequence[tuple[str, int]]
    samples: Sequence[Mapping[str, object]]  # instances as text


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of a report, as it stands in metrics.json."""

    title: str
    verdict: str
    created_at: str
    command: str
    corpora: tuple[CorpusFacts, ...]
    base: Mapping[str, object] | None  # the run that made the model pretraining went on from
    pretraining: Mapping[str, object] | None
    evaluation: Mapping[str, object] | None
    settings: Mapping[str, Mapping[str, object]]
    versions: Mapping[str, str]


def installed_versions() -> dict[str, str]:
    """Versions of Python, the machine and the packages that matter."""
    versions = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    versions["device"] = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def pretraining_facts(result: PretrainResult) -> dict[str, object]:
    """What is to be told of a pretraining run."""
    facts = asdict(result)
    facts["run_folder"], facts["checkpoint"] = str(result.run_folder), str(result.checkpoint)
    evaluations = result.evaluations()
    facts["before"], facts["after"] = evaluations[0], evaluations[-1]
    facts["probe"] = {**asdict(result.probe), "warning": result.probe.warning()} if result.probe else None
    return facts


def evaluation_facts(result: FineTuneResult) -> dict[str, object]:
    """What is to be told of a comparison: one row a model, and every seed."""
    split = result.reported_split
    rows = []
    for model in result.models:
        row: dict[str, object] = {"model": model}
        for part in dict.fromkeys(("dev", split)):
            for metric in ("accuracy", "macro_f1"):
                row[f"{part}_{metric}"] = asdict(result.summary(model, part, metric))
        if model != result.models[0]:
            difference = result.difference(model, split)
            # with a single seed the interval is unbounded, which JSON cannot say
            ends = {name: end if math.isfinite(end) else None for name, end in asdict(difference).items()}
            row["difference"] = {**ends, "is_clear": difference.is_clear}
        rows.append(row)
    seeds = [{key: value for key, value in asdict(r).items() if key != "predictions"} for r in result.seeds]
    return {
        "task": result.task,
        "split": split,
        "labels": list(result.labels),
        "examples": result.examples,
        "skipped": list(result.skipped),
        "majority_share": result.majority_share,
        "models": rows,
        "seeds": seeds,
    }


def verdict(pretraining: PretrainResult | None, evaluation: FineTuneResult | None) -> str:
    """One sentence: did it help, by how much, how sure."""
    if evaluation is not None and len(evaluation.models) > 1:
        split, seeds = evaluation.reported_split, {r.seed for r in evaluation.seeds}
        difference = evaluation.difference(evaluation.models[-1], split)
        points = f"{100 * difference.mean:+.1f} points of accuracy on {evaluation.task} {split}"
        over = f"over {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        if len(seeds) < 2:
            return f"{points} {over}: a single seed says nothing of the spread; give --seeds three or more."
        interval = f"95% interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
        if not difference.is_clear:
            return f"No clear difference: {points} {over}, {interval}."
        return f"It {'helped' if difference.mean > 0 else 'hurt'}: {points} {over}, {interval}."
    if evaluation is not None:
        summary = evaluation.summary(evaluation.models[0], evaluation.reported_split, "accuracy")
        scored = f"{100 * summary.mean:.1f}% accuracy on {evaluation.task} {evaluation.reported_split}"
        return f"{scored}; nothing to compare with."
    if pretraining is not None:
        before, after = pretraining.evaluations()[0], pretraining.evaluations()[-1]
        return (
            f"Held-out MLM loss {before['held_out_mlm_loss']:.2f} → {after['held_out_mlm_loss']:.2f}, "
            "accuracy "
            f"{100 * before['held_out_mlm_accuracy']:.1f}% → {100 * after['held_out_mlm_accuracy']:.1f}%."
        )
    return "Corpus only: nothing was trained."


def build_report(
    *,
    title: str,
    command: str,
    corpora: Sequence[CorpusFacts] = (),
    base: PretrainResult | None = None,
    pretraining: PretrainResult | None = None,
    evaluation: FineTuneResult | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> Report:
    """The report of what was done; leave out what was not."""
    return Report(
        title=title,
        verdict=verdict(pretraining, evaluation),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        corpora=tuple(corpora),
        base=pretraining_facts(base) if base else None,
        pretraining=pretraining_facts(pretraining) if pretraining else None,
        evaluation=evaluation_facts(evaluation) if evaluation else None,
        settings=settings or {},
        versions=installed_versions(),
    )
