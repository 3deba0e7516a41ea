"""Small corpora, made in this process: to start others takes longer than the work."""

import json
from pathlib import Path

from data.catalog import open_workspace
from data.refresh import Plan, RefreshResult, RefreshSettings, refresh


def write_jsonl(path: Path, *texts: str) -> None:
    """Write a document a line."""
    path.write_text("\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts), "utf-8")


class InProcess:
    """A `data.refresh.Runner` that does all of the work in this process."""

    workers = 2

    def stage(self, name, label, work):
        return work()

    def map(self, work):
        return [result for batch in work.batches for result in work.function(batch.items)]


def refresh_settings(workspace: Path, source: object, vocabulary: Path, **options: object) -> RefreshSettings:
    """Settings of a small corpus from one source, or from several."""
    sources = source if isinstance(source, tuple) else (source,)
    shared = {"corpus": "tea", "source": tuple(map(str, sources)), "tokenizer": str(vocabulary), "workers": 1}
    return RefreshSettings(workspace=workspace, **{**shared, **options})


def refresh_here(settings: RefreshSettings, plan: Plan | None = None) -> RefreshResult:
    """Refresh a corpus in this process alone."""
    return refresh(settings, InProcess(), plan)


def ask(workspace: Path, query: str, *parameters: object) -> list[tuple]:
    """Rows that a query finds in a workspace."""
    with open_workspace(workspace) as statistics:
        return statistics.sql(query, [*parameters]).fetchall()


def texts_of(workspace: Path, corpus: str = "tea") -> list[str]:
    """The texts of a corpus's documents in order of their characters."""
    with open_workspace(workspace) as statistics:
        return sorted(statistics.texts(corpus))


def make_corpus(
    root: Path, name: str, source: object, vocabulary: Path, **options: object
) -> tuple[Path, ...]:
    """Make a corpus of a workspace; returns its shards."""
    refresh_here(refresh_settings(root, source, vocabulary, corpus=name, **options))
    return tuple(sorted((root / "shards" / name).glob("*.parquet")))
