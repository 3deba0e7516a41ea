"""The content of a report, which metrics.json holds and the page shows."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import ClassVar

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python

from albert.evaluation import Comparison
from albert.pretraining import MANIFEST_FILE, PretrainResult
from albert.reports.corpus import CorpusFacts
from albert.reports.evaluation import evaluation_warnings
from albert.reports.verdict import verdict
from albert.runtime import describe_default_device
from data.files import sha256

SCHEMA_VERSION = 5  # of metrics.json
_PACKAGES = (
    "jixu", "torch", "triton", "prefect", "duckdb", "jieba", "tokenizers", "sentencepiece", "numpy",
    "pyarrow",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of a report, as metrics.json holds it. Scores are shares in [0, 1], correlations in [-1, 1]."""

    # for the records inside it too
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    schema_version: int
    title: str
    verdict: str  # a sentence for each evaluation
    warnings: tuple[str, ...]  # what a reader must know before the figures
    created_at: str  # ISO 8601
    command: str  # repeats the run
    corpora: tuple[CorpusFacts, ...]
    bases: tuple[PretrainResult, ...]  # the runs that made the models that pretraining began from
    pretraining: PretrainResult | None
    evaluations: tuple[Comparison, ...]
    settings: Mapping[str, Mapping[str, JsonValue]]  # by job
    versions: Mapping[str, str]
    checksums: Mapping[str, str]  # sha256 of inputs and outputs


REPORT: TypeAdapter[Report] = TypeAdapter(Report)


class _Described(GenerateJsonSchema):
    """Takes the comment beside a field as its description."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        described = super().dataclass_schema(schema)
        source = inspect.getsource(schema["cls"])
        for name, comment in re.findall(r"^    (\w+): .*  # (.+)$", source, re.M):
            described["properties"][name]["description"] = comment
        return described


def report_schema() -> dict[str, JsonValue]:
    """The JSON schema of metrics.json."""
    schema = REPORT.json_schema(schema_generator=_Described, mode="serialization")
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "metrics.json of a jixu report"}


def build_report(
    *,
    title: str,
    command: str,
    corpora: Sequence[CorpusFacts] = (),
    bases: Sequence[PretrainResult] = (),
    pretraining: PretrainResult | None = None,
    evaluations: Sequence[Comparison] = (),
    settings: Mapping[str, object] | None = None,
    checksums: Mapping[str, str] | None = None,
) -> Report:
    """Build a report from its parts.

    `settings` are records by job. `checksums` are added to those of the checkpoints and corpora.
    """
    runs = [*bases, *([pretraining] if pretraining else [])]
    unfinished = (
        f"{result.run_folder.name} was interrupted after {result.steps:,} steps: these are its figures so "
        "far. The same command resumes it."
        for result in runs
        if result.status != "completed"
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        title=title,
        verdict=verdict(pretraining, evaluations),
        warnings=(*evaluation_warnings(evaluations), *unfinished),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        corpora=tuple(corpora),
        bases=tuple(replace(one, history=one.finite_history) for one in bases),
        pretraining=replace(pretraining, history=pretraining.finite_history) if pretraining else None,
        evaluations=tuple(evaluations),
        settings=to_jsonable_python(settings or {}),
        versions=installed_versions(),
        checksums={**_known_checksums(runs, evaluations, corpora), **(checksums or {})},
    )


def base_titles(bases: Sequence[PretrainResult]) -> list[str]:
    """A title for each base model; if there are several, each names its run."""
    return ["Base model"] if len(bases) == 1 else [f"Base model: {base.run_folder.name}" for base in bases]


def installed_versions() -> dict[str, str]:
    """Versions of Python, the machine and the packages that matter."""
    versions = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    versions["device"] = describe_default_device()
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _known_checksums(
    runs: Sequence[PretrainResult], evaluations: Sequence[Comparison], corpora: Sequence[CorpusFacts]
) -> dict[str, str]:
    checksums = {}
    for result in runs:
        # the manifest holds the checksum of each of the checkpoint's files
        if (manifest := result.checkpoint / MANIFEST_FILE).is_file():
            checksums[f"{result.run_folder.name}/{result.checkpoint.name}/{MANIFEST_FILE}"] = sha256(manifest)
    for comparison in evaluations:
        for model in comparison.models:
            for n, checksum in enumerate(model.checksums, 1):
                number = f", run {n}" if len(model.checksums) > 1 else ""
                checksums[f"weights of {model.name}{number}"] = checksum
    for corpus in corpora:
        if corpus.shards_sha256:
            checksums[f"shards of {corpus.corpus}, version {corpus.version}"] = corpus.shards_sha256
    return checksums
