"""Corpora of any size for the benchmarks, made from real text so that no document repeats another.

A document is sentences drawn at random from the source, each with two random Han characters put in, so that
neither exact, near nor boilerplate deduplication finds anything: all of it has to be worked through.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from data.refresh import RefreshSettings, read_sentences
from data.sources import find_files
from data.storage import base_name
from data.tokenization import WordPieceTokenizer

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
FILE_CHARACTERS, DOCUMENT_CHARACTERS = 4_000_000, 1500
# options of the benchmarks that make a corpus
Source = Annotated[tuple[str, ...], Parameter(help="Real text; by default the samples.")]
Vocabulary = Annotated[str | None, Parameter(help="vocab.txt; by default every character.")]
Characters = Annotated[int, Parameter(help="Of made-up text.")]


def refresh_settings(source: Path, vocabulary: Path, workspace: Path, workers: int = 1) -> RefreshSettings:
    """The settings of a refresh of such a corpus, named c."""
    return RefreshSettings(
        corpus="c", source=(str(source),), workspace=workspace, tokenizer=str(vocabulary), workers=workers
    )


def given_sources(sources: Sequence[str]) -> list[str]:
    """Return the sources, or the samples by default."""
    return list(sources) or [str(SAMPLES / name) for name in ("general.txt", "tea.jsonl")]


def source_names(sources: Sequence[str]) -> list[str]:
    """Name the sources without their folders on one machine."""
    return [base_name(source.rstrip("/")) for source in given_sources(sources)]


def load_sentences(sources: Sequence[str]) -> list[str]:
    """Load the sentences of the sources, or of the samples."""
    files = [uri for source in given_sources(sources) for uri in find_files(source)]
    return [sentence for uri in files for sentence in read_sentences(uri, Counter())]


@contextmanager
def prepared(source: Sequence[str], tokenizer: str | None) -> Iterator[tuple[Path, list[str], Path]]:
    """Give a folder, the sentences of the sources, and the vocabulary that was named or one made of them."""
    sentences = load_sentences(source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        yield folder, sentences, Path(tokenizer or make_vocabulary(sentences, folder / "vocabulary"))


def make_vocabulary(sentences: list[str], folder: Path) -> Path:
    """Make a vocabulary of every character of the text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = list("abcdefghijklmnopqrstuvwxyz0123456789")
    characters = sorted(set("".join(sentences).lower()) | {chr(c) for c in range(0x4E00, 0x9FA6)})
    entries = dict.fromkeys([*special, *pieces, *(f"##{c}" for c in pieces), *characters])
    WordPieceTokenizer([entry for entry in entries if not entry.isspace()]).save(folder)
    return folder / "vocab.txt"


def write_corpus(
    folder: Path, sentences: Sequence[str], characters: int, *, file_characters: int = FILE_CHARACTERS
) -> int:
    """Write about `characters` as JSONL, in documents of about 1,500; return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    han = [chr(code) for code in range(0x4E00, 0x9FA6)]
    written = number = 0
    while written < characters:
        size = 0
        goal = min(file_characters, characters - written)
        with (folder / f"part-{number:05d}.jsonl").open("w", encoding="utf-8") as file:
            while size < goal:
                parts, length, target = [], 0, rng.expovariate(1 / DOCUMENT_CHARACTERS) + 100
                while length < target:
                    sentence = rng.choice(sentences)
                    at = rng.randrange(len(sentence) + 1)
                    parts.append(f"{sentence[:at]}{rng.choice(han)}{rng.choice(han)}{sentence[at:]}")
                    length += len(parts[-1])
                text = "".join(parts)
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                size += len(text)
        written += size
        number += 1
    return written
