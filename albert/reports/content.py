"""What a report says: facts about the corpora, the training and the evaluation, and the one-sentence
verdict.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata

import torch

from albert.comparison import Comparison
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


def evaluation_facts(result: Comparison) -> dict[str, object]:
    """What is to be told of a comparison: one row a model, and every seed."""
    rows = []
    for model in result.models:
        row: dict[str, object] = {"model": model.name}
        for part in dict.fromkeys(("dev", result.split)):
            for metric, summary in getattr(model, part).items():
                row[f"{part}_{metric}"] = asdict(summary)
        difference = result.difference(model.name)
        if difference is not None:
            row["difference"] = asdict(difference)
        rows.append(row)
    seeds = [{"model": m.name, **asdict(run)} for m in result.models for run in m.seeds]
    return {**result.to_record(), "models": rows, "seeds": seeds, "majority_share": result.chance}


def verdict(pretraining: PretrainResult | None, evaluation: Comparison | None) -> str:
    """One sentence: did it help, by how much, how sure."""
    if evaluation is not None and evaluation.differences:
        difference, n = evaluation.differences[-1], len(evaluation.seeds)
        points = f"{100 * difference.mean:+.1f} points of {evaluation.metric} on {evaluation.task}"
        over = f"{evaluation.split} over {n} seed{'s' if n > 1 else ''}"
        if difference.low is None:
            return f"{points} {over}: a single seed says nothing of the spread; give --seeds three or more."
        interval = f"95% interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
        if not difference.is_clear:
            return f"No clear difference: {points} {over}, {interval}."
        return f"It {'helped' if difference.mean > 0 else 'hurt'}: {points} {over}, {interval}."
    if evaluation is not None:
        summary = evaluation.scores(evaluation.models[0].name)[evaluation.metric]
        scored = f"{100 * summary.mean:.1f}% {evaluation.metric} on {evaluation.task} {evaluation.split}"
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
    evaluations: Sequence[Comparison] = (),
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> Report:
    """The report of what was done; leave out what was not."""
    return Report(
        title=title,
        verdict=verdict(pretraining, evaluations[-1] if evaluations else None),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        corpora=tuple(corpora),
        base=pretraining_facts(base) if base else None,
        pretraining=pretraining_facts(pretraining) if pretraining else None,
        evaluation=evaluation_facts(evaluations[-1]) if evaluations else None,
        settings=settings or {},
        versions=installed_versions(),
    )
