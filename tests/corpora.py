"""Small corpora, made in this process: to start others takes longer than the work."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from data.catalog import open_workspace, read_catalog, record_run, require_version, version_shards
from data.refresh import Plan, RefreshResult, RefreshSettings, divide, plan_refresh, read_batch, refresh
from data.workspace import Workspace

NEW = "新来的一篇讲怎样选茶杯。白瓷的最公道。"


def write_jsonl(path: Path, *texts: str) -> None:
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
    shared = {"corpus": "tea", "source": source, "tokenizer": vocabulary, "workers": 1}
    return RefreshSettings(workspace=workspace, **{**shared, **options})


def refresh_here(settings: RefreshSettings, plan: Plan | None = None) -> RefreshResult:
    return refresh(settings, InProcess(), plan)


def ask(workspace: Path, query: str, *parameters: object) -> list[tuple]:
    with open_workspace(workspace) as statistics:
        return statistics.sql(query, [*parameters]).fetchall()


def shards_of(workspace: Path, corpus: str = "tea") -> list:
    with read_catalog(Workspace(workspace)) as db:
        return version_shards(db, require_version(db, corpus))


def record(place: Workspace, run: str, status: str = "completed", **known: object) -> None:
    """Record a pretraining, by default on version 1 of the corpus tea, in the catalog."""
    usual = {"corpus": "tea", "version": 1, "init": "tiny", "settings": {}, "metrics": {}, "checkpoints": []}
    record_run(place, run=run, status=status, **{**usual, "steps": 5, "tokens": 50, **known})


def make_corpus(
    root: Path, name: str, source: object, vocabulary: Path, **options: object
) -> tuple[Path, ...]:
    """Make a corpus of a workspace; returns its shards."""
    refresh_here(refresh_settings(root, source, vocabulary, corpus=name, **options))
    return tuple(sorted((root / "shards" / name).glob("*.parquet")))


@dataclass(frozen=True)
class Corpus:
    """A corpus, made or not, and the folder of the texts that it is made from."""

    settings: RefreshSettings

    @classmethod
    def begin(cls, folder: Path, vocabulary: Path, *sources: Path, **options: object) -> "Corpus":
        """Settings for a workspace `w` beside a folder `raw` with copies of some files."""
        (folder / "raw").mkdir(exist_ok=True)
        for source in sources:
            shutil.copy(source, folder / "raw")
        return cls(refresh_settings(folder / "w", folder / "raw", vocabulary, **options))

    @property
    def raw(self) -> Path:
        return Path(str(self.settings.source[0]))

    @property
    def root(self) -> Path:
        return self.settings.workspace

    @property
    def place(self) -> Workspace:
        return Workspace(self.root)

    def put(self, name: str, *texts: str) -> None:
        """Write documents into a JSONL file of the folder."""
        write_jsonl(self.raw / f"{name}.jsonl", *texts)

    def changed(self, **changes: object) -> "Corpus":
        return Corpus(replace(self.settings, **changes))

    def plan(self, **changes: object) -> Plan:
        return plan_refresh(self.changed(**changes).settings)

    def divided(self) -> tuple:
        """Its plan, what its sources hold, and the division of that into shards."""
        planned = self.plan()
        sources = read_batch(planned.files, planned)
        return planned, sources, divide(planned, sources)

    def refresh(self, **changes: object) -> RefreshResult:
        return refresh_here(self.changed(**changes).settings)

    def ask(self, query: str, *parameters: object) -> list[tuple]:
        return ask(self.root, query, *parameters)

    def texts(self) -> list[str]:
        """Those of its documents in order of their characters."""
        with open_workspace(self.root) as statistics:
            return sorted(statistics.texts(self.settings.corpus))
