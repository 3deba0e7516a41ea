"""All of a report as plain facts: what metrics.json holds and the page is made from."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import PurePath
from typing import TYPE_CHECKING

import torch

from albert.pretraining import MANIFEST_FILE
from albert.reports.corpus import CorpusFacts
from albert.reports.evaluation import contamination_warnings
from albert.reports.verdict import verdict
from data.files import sha256

if TYPE_CHECKING:
    from albert.evaluation import Comparison
    from albert.pretraining import PretrainResult

SCHEMA_VERSION = 2  # of metrics.json; metrics.schema.json says the same
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
class Report:
    """All of a report, as it stands in metrics.json."""

    schema_version: int
    title: str
    verdict: str
    warnings: tuple[str, ...]  # what a reader must know before the figures
    created_at: str
    command: str
    corpora: tuple[CorpusFacts, ...]
    bases: tuple[Mapping[str, object], ...]  # the runs that made the models pretraining went on from
    pretraining: Mapping[str, object] | None
    evaluations: tuple[Mapping[str, object], ...]
    settings: Mapping[str, Mapping[str, object]]
    versions: Mapping[str, str]
    checksums: Mapping[str, str]  # sha256 of what went in and came out


def build_report(
    *,
    title: str,
    command: str,
    corpora: Sequence[CorpusFacts] = (),
    bases: Sequence[PretrainResult] = (),
    pretraining: PretrainResult | None = None,
    evaluations: Sequence[Comparison] = (),
    settings: Mapping[str, Mapping[str, object]] | None = None,
    checksums: Mapping[str, str] | None = None,
) -> Report:
    """The report of what was done; leave out what was not. The checksums of checkpoints and corpora come
    by themselves.
    """
    compared = tuple(comparison.to_record() for comparison in evaluations)
    trained = pretraining_facts(pretraining) if pretraining else None
    runs = [*bases, *([pretraining] if pretraining else [])]
    return Report(
        schema_version=SCHEMA_VERSION,
        title=title,
        verdict=verdict(trained, compared),
        warnings=(
            *contamination_warnings(compared),
            *(_unfinished(result) for result in runs if result.status != "completed"),
        ),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        corpora=tuple(corpora),
        bases=tuple(map(pretraining_facts, bases)),
        pretraining=trained,
        evaluations=compared,
        settings=settings or {},
        versions=installed_versions(),
        checksums={**_known_checksums(runs, compared, corpora), **(checksums or {})},
    )


def _unfinished(result: PretrainResult) -> str:
    return (
        f"{result.run_folder.name} was interrupted after {result.steps:,} steps: these are its figures so "
        "far. The same command goes on from there."
    )


def pretraining_facts(result: PretrainResult) -> dict[str, object]:
    """What is to be told of a pretraining run, as JSON has it."""
    evaluations = result.evaluations()
    probe = {**asdict(result.probe), "warning": result.probe.warning()} if result.probe else None
    facts = {**asdict(result), "before": evaluations[0], "after": evaluations[-1], "probe": probe}
    # JSON has no nan and no infinity, which a history has where training fell apart
    return json.loads(json.dumps(facts, default=str), parse_constant=lambda name: None)


def base_titles(bases: Sequence[Mapping[str, object]]) -> list[str]:
    """A title for each; where there are several, with the name of its run."""
    if len(bases) == 1:
        return ["Base model"]
    return [f"Base model: {PurePath(str(facts['run_folder'])).name}" for facts in bases]


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


def _known_checksums(
    runs: Sequence[PretrainResult],
    evaluations: Sequence[Mapping[str, object]],
    corpora: Sequence[CorpusFacts],
) -> dict[str, str]:
    found = {}
    for result in runs:
        # the manifest holds the checksum of each of the checkpoint's files
        if (manifest := result.checkpoint / MANIFEST_FILE).is_file():
            found[f"{result.run_folder.name}/{result.checkpoint.name}/{MANIFEST_FILE}"] = sha256(manifest)
    for facts in evaluations:
        found |= {f"weights of {model['name']}": model["checksum"] for model in facts["models"]}
    for facts in corpora:
        if facts.shards_sha256:
            found[f"shards of {facts.corpus}, version {facts.version}"] = facts.shards_sha256
    return found
