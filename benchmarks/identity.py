"""Compare words with jieba's and token ids with the `tokenizers` library's, text by text over whole sources.

    python -m benchmarks.identity [--source FILE ...] [--tokenizer FILE] [--every N]

Each text is compared as it is, and again after cleaning if that changes it. The references are
jieba itself, and BERT's normaliser, pre-tokeniser and WordPiece of the library over the whole text.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jieba
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from benchmarks.support.corpora import given_sources, load_sentences, make_vocabulary, source_names
from benchmarks.support.results import write_result
from data.cleaning import clean_text
from data.segmentation import Segmenter
from data.sources import find_files, read_text_rows
from data.tokenization import load_tokenizer
from data.tokenization.wordpiece import read_vocabulary

SHOWN = 5  # differences printed for each source

# compares a text: words differ, ids differ
Compare = Callable[[str], tuple[bool, bool]]


@dataclass
class Compared:
    """Number of a source's texts that differ from the references."""

    source: str  # base name
    texts: int = 0
    characters: int = 0
    words_differ: int = 0
    ids_differ: int = 0


def reference_tokenizer(vocabulary: Path) -> Tokenizer:
    """The library's WordPiece as in BERT, without special tokens: text that spells one is text."""
    ids = {token: number for number, token in enumerate(read_vocabulary(vocabulary))}
    library = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


def comparison(vocabulary: Path) -> Compare:
    """Make a function that compares the words and ids of a text with the references."""
    jieba.setLogLevel("WARNING")
    segmenter, tokenizer, library = Segmenter(), load_tokenizer(vocabulary), reference_tokenizer(vocabulary)

    def compare(text: str) -> tuple[bool, bool]:
        ids = library.encode(text, add_special_tokens=False).ids
        return segmenter.split(text) != jieba.lcut(text), tokenizer.encode(text)[0].tolist() != ids

    return compare


def _forms(text: str) -> Iterator[str]:
    yield text
    if (clean := clean_text(text)) != text:
        yield clean


def compare_source(source: str, compare: Compare, every: int) -> Compared:
    """Compare one in `every` texts, drawn at random: a stride might only meet one field of each row."""
    compared = Compared(*source_names([source]))
    rng = random.Random(0)
    texts = (text for uri in find_files(source) for row in read_text_rows(uri) for text in row)
    for text in texts:
        if rng.randrange(every):
            continue
        compared.texts += 1
        compared.characters += len(text)
        differs = [compare(form) for form in _forms(text)]
        words, ids = (any(some) for some in zip(*differs, strict=True))
        compared.words_differ += words
        compared.ids_differ += ids
        if (words or ids) and compared.words_differ + compared.ids_differ <= SHOWN:
            print(f"{compared.source}: {'words' if words else 'ids'} of {text[:200]!r}", file=sys.stderr)
    return compared


def main(arguments: list[str] | None = None) -> int:
    """Compare and write the result; return 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.identity", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character of the samples]")
    parser.add_argument("--every", type=int, default=1, help="compare one in this many texts [%(default)s]")
    options = parser.parse_args(arguments)
    sources = given_sources(options.source)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(options.tokenizer or make_vocabulary(load_sentences([]), Path(folder)))
        compare = comparison(vocabulary)
        rows = [compare_source(source, compare, options.every) for source in sources]
    characters = sum(row.characters for row in rows)
    words, ids = sum(row.words_differ for row in rows), sum(row.ids_differ for row in rows)
    part = "every text" if options.every == 1 else f"one text in {options.every}"
    verdict = (
        f"identity: over {characters:,} characters ({part} of {len(rows)} source(s)), words differ from "
        f"jieba's in {words:,} text(s), ids from the tokenizers library's in {ids:,}: "
        f"{'differs' if words or ids else 'identical'}"
    )
    result = {
        "vocabulary": vocabulary.name,
        "every": options.every,
        "characters": characters,
        "cpu_seconds": time.process_time() - began,
        "sources": [asdict(row) for row in rows],
    }
    write_result("identity", verdict, result)
    return 1 if words or ids else 0


if __name__ == "__main__":
    raise SystemExit(main())
