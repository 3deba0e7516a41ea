"""train-tokenizer: a corpus or raw text -> a vocabulary in the workspace, ready for refresh-corpus."""

from flows.orchestration import run_if_main

run_if_main(__name__)

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from prefect import flow
from pydantic import Field

from data.catalog import Version, open_workspace
from data.errors import InputError
from data.refresh import read_sentences
from data.tokenization import Tokenizer, find_tokenizer, vocabulary_of
from data.tokenization import train_tokenizer as learn
from data.workspace import Workspace, check_name, default_place
from flows.orchestration import (
    begin_progress,
    documented,
    ends_with_its_worker,
    in_working_copy,
    log,
    publish_vocabulary,
    step,
    tokenizer_sources,
)

learn_vocabulary = step("learn-vocabulary")


@dataclass(frozen=True, slots=True)
class TokenizerOutcome:
    folder: Path
    kind: str
    entries: int


@flow(name="train-tokenizer", flow_run_name="train {kind} tokenizer")
@documented
@ends_with_its_worker
@in_working_copy
def train_tokenizer(
    corpus: Annotated[str | None, Field(description="Corpus of the workspace to learn from (语料名)")] = None,
    source: Annotated[list[str], Field(description="Or raw text: files, folders or globs (原始文本)")] = [],  # noqa: B006 (Prefect shows it as the form's default; never changed)
    kind: Annotated[
        Literal["wordpiece", "sentencepiece"], Field(description="wordpiece is BERT's (词表类型)")
    ] = "wordpiece",
    vocab_size: Annotated[int, Field(ge=100, le=250_000, description="Entries at most (词表大小)")] = 21128,
    name: Annotated[str | None, Field(description="Name in the workspace; kind and size if empty")] = None,
    workspace: Annotated[str, Field(description="Folder for everything made (工作区)")] = default_place(),
) -> TokenizerOutcome:
    """Learn a vocabulary from cleaned sentences."""
    folder = Workspace(Path(workspace)).tokenizers / check_name(name or f"{kind}-{vocab_size}", "tokenizer")
    sources = tokenizer_sources(corpus, source, workspace)
    move = begin_progress(folder.name, "of the text read; what comes then does not tell how far it is")
    sentences = iterate_sentences(sources, workspace, move)
    tokenizer = learn_vocabulary(folder.name, lambda: learn(sentences, kind=kind, vocab_size=vocab_size))
    refuse_another(folder, tokenizer)
    tokenizer.save(folder)
    outcome = TokenizerOutcome(folder, kind, tokenizer.vocab_size)
    publish_vocabulary(folder.name, describe(outcome), vocabulary_of(find_tokenizer(str(folder))))
    log(describe(outcome))
    return outcome


def refuse_another(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise InputError where a folder holds a vocabulary that differs: corpora may have been made with it."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with TemporaryDirectory() as made:
        tokenizer.save(Path(made))
        new, old = (vocabulary_of(find_tokenizer(str(one))) for one in (made, folder))
    if new != old:
        raise InputError(
            f"{folder} holds another vocabulary, which corpora may have been made with: pass another --name"
        )


def iterate_sentences(
    sources: list[str] | Version, workspace: str, move: Callable[[float], None]
) -> Iterator[str]:
    """Cleaned sentences of raw files or of a corpus's current version; `move` is told what share was read."""
    if isinstance(sources, list):
        for read, path in enumerate(sources, 1):
            yield from read_sentences([path])
            move(read / len(sources))
        return
    with open_workspace(workspace) as statistics:
        for read, text in enumerate(statistics.texts(sources.corpus), 1):
            yield from text.split("\n")
            move(read / sources.documents)


def describe(outcome: TokenizerOutcome) -> str:
    """What a person wants to know of the result."""
    return f"{outcome.kind} vocabulary of {outcome.entries:,} entries in {outcome.folder}"
