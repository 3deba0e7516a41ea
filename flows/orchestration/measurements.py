"""What is measured of a model beside its scores: cost, knowledge of the corpora, evaluation texts in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from albert.batching import is_held_out
from albert.checkpoints import find_source, names_checkpoint
from albert.evaluation import (
    Cloze,
    Contamination,
    HeldOut,
    Intrinsic,
    ModelResult,
    measure_intrinsic,
    measure_mlm_losses,
)
from albert.finetuning import Candidate, measure_cost
from data.catalog import (
    Lineage,
    Statistics,
    has_catalog,
    lineages,
    read_catalog,
    require_version,
    sample_shards,
    version_recipe,
    version_shards,
)
from data.cleaning import CleaningRules, Leak, clean_text, find_leak, sides_of
from data.refresh import corpus_words
from data.tokenization import find_tokenizer, free_slots, load_tokenizer
from data.workspace import Workspace
from flows.orchestration.settings import CorporaOptions

DOMAIN_WORDS = 200
CLOZE_WORDS = 300  # occurrences, in held-out documents
MOST_SEARCHED = 200_000_000  # characters of a corpus, which take about a minute
Rows = tuple[tuple[str, ...], ...]  # the texts of each example
Corpora = tuple[tuple[str, int | None], ...]  # names and versions; None: the newest


def measure_model(
    model: ModelResult,
    candidate: Candidate,
    workspace: Workspace,
    reference: CorporaOptions,
    corpora: Corpora,
    has_read_held_out: bool,
) -> ModelResult:
    """Add the cost, the knowledge and the contamination of a model's first checkpoint to its scores.

    `reference` are the corpora to measure it on, `corpora` those it was pretrained on.
    """
    leaks = tuple(
        contamination(tuple(one.texts() for one in found.examples), workspace, corpus, split, version)
        for corpus, version in corpora
        for split, found in candidate.data.splits.items()
        if split in ("dev", "test")
    )
    intrinsic = None
    if candidate.is_own and (reference.domain or reference.general):
        intrinsic = _intrinsic(
            candidate.path,
            candidate.checksum,
            find_held_out(workspace, reference.domain, candidate.path, is_read=has_read_held_out),
            find_held_out(workspace, reference.general, candidate.path),
            find_cloze(workspace, reference.domain) if reference.domain and not has_read_held_out else (),
        )
    return replace(model, cost=measure_cost(candidate), contamination=leaks, intrinsic=intrinsic)


@lru_cache(maxsize=32)
def _intrinsic(
    checkpoint: Path, checksum: str, domain: HeldOut | None, general: HeldOut | None, cloze: tuple[Cloze, ...]
) -> Intrinsic:
    """Measure a checkpoint once for all the tasks and numbers of labels of an experiment."""
    return measure_intrinsic(checkpoint, domain=domain, general=general, cloze=cloze)


def added_mlm_loss(workspace: Workspace, corpus: str, checkpoint: Path) -> float | None:
    """Measure how many nats a token the newest version's added documents are harder for a checkpoint than the
    older ones; None if it cannot read them.
    """
    with TemporaryDirectory() as folder, Statistics(workspace) as statistics:
        added, older = measure_mlm_losses(checkpoint, sample_shards(statistics, corpus, Path(folder)))
    return None if added is None or older is None else added - older


def corpora_to_search(
    workspace: Workspace, checkpoints: Sequence[Path], options: CorporaOptions, *, has_read_domain: bool
) -> tuple[Corpora, list[str]]:
    """The corpora that checkpoints were pretrained on, to be searched for texts of the task; and a sentence
    for each that is too large to be searched unasked.

    By the catalog, if runs of the workspace wrote them; what came from elsewhere has read what the options
    say.
    """
    behind = [Lineage(frozenset(), str(checkpoint)) for checkpoint in checkpoints]
    if has_catalog(workspace):
        with read_catalog(workspace) as db:
            behind = [one for checkpoint in checkpoints for one in lineages(db, workspace, checkpoint)]
    read = {corpus for one in behind for corpus in one.corpora}
    found = sorted(read, key=lambda corpus: (corpus.name, corpus.version or 0))
    is_from_elsewhere = any(not one.corpora for one in behind)
    named: list[str | None] = []
    if is_from_elsewhere or any(names_checkpoint(one.start) for one in behind):
        named = [options.general, options.domain if is_from_elsewhere and has_read_domain else None]
    known = {corpus.name for corpus in found}
    asked = (options.general, options.domain)
    too_large = [one for one in found if one.characters > MOST_SEARCHED and one.name not in asked]
    searched = (
        *((name, None) for name in dict.fromkeys(named) if name and name not in known),
        *((corpus.name, corpus.version) for corpus in found if corpus not in too_large),
    )
    return searched, [
        f"not searched for texts of the task: {one.name}, as it has {one.characters:,} "
        f"characters (--corpora.domain {one.name} searches it)"
        for one in too_large
    ]


def contamination(
    rows: Rows, workspace: Workspace, corpus: str, split: str, version: int | None = None
) -> Contamination:
    """Count the texts of a split that a version of a corpus holds, by default the newest."""
    with read_catalog(workspace) as db:
        version = require_version(db, corpus, version).version
    leak = _leak(rows, workspace, corpus, version)
    return Contamination(
        corpus=corpus,
        version=version,
        split=split,
        texts=leak.texts,
        found=len(leak.found),
        documents=leak.documents,
        examples=leak.rows,
        share=leak.share,
    )


@lru_cache(maxsize=32)
def _leak(rows: Rows, workspace: Workspace, corpus: str, version: int) -> Leak:
    """Find the texts that a version holds. They are cleaned as it was: otherwise it would look free of those
    that cleaning changed.
    """
    with Statistics(workspace) as statistics:
        recipe: Any = version_recipe(statistics.db, corpus, version)
        rules = CleaningRules(**recipe["cleaning"])
        cleaned = [[clean_text(text, rules) for text in row] for row in rows]
        return find_leak(cleaned, statistics.texts(corpus, version), recipe["guard"].get("share", 0.0))


def find_held_out(
    workspace: Workspace, corpus: str | None, checkpoint: Path, *, is_read: bool = False
) -> HeldOut | None:
    """Find the shards and the held-out share of a corpus; None if a checkpoint's ids mean other words."""
    if corpus is None:
        return None
    with read_catalog(workspace) as db:
        version = require_version(db, corpus)
        shards = version_shards(db, version)
    if not _same_words(workspace, version.tokenizer, checkpoint):
        return None
    return HeldOut(tuple(workspace.root / shard.path for shard in shards), version.held_out_share, is_read)


def _same_words(workspace: Workspace, tokenizer: str, checkpoint: Path) -> bool:
    """Whether a corpus's ids mean the same to a checkpoint; terms may stand in slots that had no use."""
    theirs = load_tokenizer(find_tokenizer(tokenizer, workspace.tokenizers)).vocabulary
    ours = load_tokenizer(find_source(checkpoint).vocabulary).vocabulary
    slots = set(free_slots(theirs))
    pairs = enumerate(zip(theirs, ours, strict=False))
    return len(theirs) <= len(ours) and all(a == b or i in slots for i, (a, b) in pairs)


@lru_cache(maxsize=8)
def domain_words(workspace: Workspace, corpus: str) -> tuple[str, ...]:
    """New words of a corpus, the best first; found once in a run."""
    return tuple(word.word for word in corpus_words(workspace, corpus, limit=DOMAIN_WORDS))


@lru_cache(maxsize=8)
def find_cloze(workspace: Workspace, corpus: str) -> tuple[Cloze, ...]:
    """Domain words in held-out sentences, in the corpus's order."""
    words, sentences = domain_words(workspace, corpus), _held_out_sentences(workspace, corpus)
    found = (Cloze(sentence, word) for sentence in sentences for word in words if word in sentence)
    return tuple(islice(found, CLOZE_WORDS))


def _held_out_sentences(workspace: Workspace, corpus: str) -> Iterator[str]:
    with Statistics(workspace) as statistics:
        share = require_version(statistics.db, corpus).held_out_share
        for text in statistics.texts(corpus):
            if is_held_out(sides_of([text]), share)[0]:
                yield from text.split("\n")
