"""Characters a second from raw text to committed shards, against the libraries people use.

    python -m benchmarks.data_prep [--source FILE ...] [--characters N]

The rivals run in the same process on a part of the same text and must give the same words and ids: jieba for
words, the `tokenizers` library (behind transformers' fast BERT tokenizer) for ids. A preparation built on
them takes at least as long as both, without cleaning, filters, deduplication, masks or writing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jieba
import numpy as np

from benchmarks.support.corpora import (
    Characters,
    Source,
    Vocabulary,
    prepared,
    refresh_settings,
    source_names,
    write_corpus,
)
from benchmarks.support.results import command, met, write_result
from data.cleaning import CleaningRules, clean_and_count, clean_text, measure, sketch, split_sentences
from data.instances import tokenize_documents
from data.refresh import ProcessRunner, plan_refresh, refresh
from data.refresh.build import segmenter
from data.sources import RawDocument, find_files, read_documents
from data.tokenization import Tokenizer, load_tokenizer
from data.workers import worker_pool

REFERENCE = 96_000  # characters/s of albert_zh's create_pretraining_data on one core of such a machine
GOAL, SCALING_GOAL = 1_000_000, 1.9
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    made = work()
    return made, time.perf_counter() - began


def read_texts(files: Sequence[str]) -> list[str]:
    found = (item for file in files for item in read_documents(file))
    return [item.text for item in found if isinstance(item, RawDocument)]


def measure_words_and_ids(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[float, float]:
    """Seconds of ours and of the rivals. Exits if words or ids differ."""
    cleaned = [clean_text(text) for text in texts]
    documents = [split_sentences(text) for text in cleaned]
    lines = [sentence for sentences in documents for sentence in sentences]
    text = "".join(f"{line}\n" for line in lines)
    exact = jieba.Tokenizer()
    exact.initialize()
    lengths, words_seconds = timed(lambda: segmenter(()).lengths(text))
    words, jieba_seconds = timed(lambda: exact.lcut(text))
    if [len(word) for word in words] != lengths.tolist():
        raise SystemExit("words differ from jieba's: no result")
    counts = np.array(list(map(len, documents)))
    tokens, ids_seconds = timed(lambda: tokenize_documents(text, lengths, counts, tokenizer, 125))
    library = tokenizer.library
    encodings, library_seconds = timed(lambda: library.encode_batch(lines, add_special_tokens=False))
    if [i for encoding in encodings for i in encoding.ids] != tokens.input_ids.tolist():
        raise SystemExit("ids differ from the tokenizers library's: no result")
    return words_seconds + ids_seconds, jieba_seconds + library_seconds


def refresh_seconds(source: Path, vocabulary: Path, folder: Path, workers: int) -> float:
    """Seconds of a refresh, without its plan and the start of its processes."""
    settings = refresh_settings(source, vocabulary, folder, workers)
    with worker_pool(workers) as pool:
        list(pool.map(_warm, range(workers)))
        plan = plan_refresh(settings)
        return timed(lambda: refresh(settings, ProcessRunner(pool, workers), plan))[1]


def _warm(number: int) -> None:
    # load what a process loads once: jieba's dictionaries and the character tables
    segmenter(()).split("继续A-B赞赞赞赞")
    sketch(measure([["继续"]]).letters, 5)
    clean_and_count("继续" * 2000, CleaningRules())
    time.sleep(1.0)  # so that every process gets one


def main(*, source: Source = (), tokenizer: Vocabulary = None, characters: Characters = 8_000_000) -> None:
    with prepared(source, tokenizer) as (folder, sentences, vocabulary):
        raw = folder / "raw"
        characters = write_corpus(raw, sentences, characters, file_characters=characters // 16)
        few = read_texts(find_files(str(raw))[:4])
        _warm(0)
        ours, rivals = measure_words_and_ids(few, load_tokenizer(vocabulary))
        seconds = {w: refresh_seconds(raw, vocabulary, folder / f"workspace-{w}", w) for w in (1, 2)}
    speed, alone = characters / seconds[1], sum(map(len, few)) / rivals
    scaling = seconds[1] / seconds[2]
    verdict = (
        f"data_prep: {speed:,.0f} characters/s/core from raw text to shards (goal {GOAL:,}: "
        f"{met(speed >= GOAL)}), {speed / REFERENCE:.1f}x the reference {REFERENCE:,}, {speed / alone:.1f}x "
        f"jieba and the tokenizers library alone in this run; two workers {scaling:.2f}x (goal "
        f"{SCALING_GOAL}: {met(scaling >= SCALING_GOAL)})"
    )
    result = {
        "sources": source_names(source),
        "characters": characters,
        "refresh_characters_per_second": {str(w): characters / taken for w, taken in seconds.items()},
        "rival_characters_per_second": alone,
        "words_and_ids_ratio": rivals / ours,
        "two_workers_ratio": scaling,
    }
    write_result("data_prep", verdict, result)


if __name__ == "__main__":
    command(main)
