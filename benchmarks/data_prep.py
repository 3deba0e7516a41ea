"""Characters a second from raw text to committed shards, stage by stage, against the libraries people use.

    python -m benchmarks.data_prep [--source FILE ...] [--characters N]

The rivals run in the same process on the same text and must give the same words and ids: jieba for words, the
`tokenizers` library (behind transformers' fast BERT tokenizer) for ids. A preparation built on them takes at
least as long as both together, without cleaning, filters, deduplication, masks or writing.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jieba
import numpy as np

from benchmarks.support.corpora import (
    corpus_options,
    load_sentences,
    make_vocabulary,
    refresh_settings,
    source_names,
    write_corpus,
)
from benchmarks.support.results import met, write_result
from data.cleaning import CleaningRules, clean_and_count, measure, sides_of, sketch, split_sentences
from data.instances import (
    MaskRule,
    build_instances,
    find_objective,
    instance_table,
    mask_vocabulary,
    tokenize_documents,
    write_table,
)
from data.refresh import ProcessRunner, plan_refresh, refresh
from data.refresh.build import segmenter
from data.sources import RawDocument, document_id, find_files, read_documents
from data.tokenization import Tokenizer, load_tokenizer
from data.workers import worker_pool

REFERENCE = 96_000  # characters/s of albert_zh's create_pretraining_data on one core of such a machine
GOAL, SCALING_GOAL = 1_000_000, 1.9
BATCH = 175  # documents
T = TypeVar("T")


class Stopwatch:
    """Seconds of each stage, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def run(self, name: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        made = work()
        self.seconds[name] += time.perf_counter() - began
        return made


def read_all(files: Sequence[str]) -> list[RawDocument]:
    return [item for file in files for item in read_documents(file) if isinstance(item, RawDocument)]


def measure_stages(files: Sequence[str], tokenizer: Tokenizer, folder: Path) -> tuple[Stopwatch, Stopwatch]:
    """Time each stage over the same documents, and the rivals for words and ids."""
    ours, rivals = Stopwatch(), Stopwatch()
    exact = jieba.Tokenizer()
    exact.initialize()
    raw = ours.run("read", lambda: read_all(files))
    cleaned = ours.run("clean", lambda: [clean_and_count(d.text, CleaningRules())[0] for d in raw])
    documents = ours.run("split", lambda: [split_sentences(text) for text in cleaned])
    doc_ids = list(map(document_id, cleaned))
    for begin in range(0, len(documents), BATCH):
        batch = slice(begin, begin + BATCH)
        measure_batch(documents[batch], doc_ids[batch], tokenizer, exact, folder, ours, rivals)
    return ours, rivals


def measure_batch(
    documents: list[list[str]],
    doc_ids: list[str],
    tokenizer: Tokenizer,
    exact: jieba.Tokenizer,
    folder: Path,
    ours: Stopwatch,
    rivals: Stopwatch,
) -> None:
    """Time the stages from measuring to writing. Exits if words or ids differ from the rivals'."""
    measures = ours.run("measure", lambda: measure(documents))
    ours.run("near duplicates", lambda: sketch(measures.letters, 5))
    text = "".join([f"{sentence}\n" for sentences in documents for sentence in sentences])
    lengths = ours.run("words", lambda: segmenter(()).lengths(text))
    if [len(word) for word in rivals.run("words", lambda: exact.lcut(text))] != lengths.tolist():
        raise SystemExit("words differ from jieba's: no result")
    counts = np.array([len(sentences) for sentences in documents])
    tokens = ours.run("ids", lambda: tokenize_documents(doc_ids, text, lengths, counts, tokenizer, 125))
    lines = text.split("\n")[:-1]
    library = tokenizer.library
    encodings = rivals.run("ids", lambda: library.encode_batch(lines, add_special_tokens=False))
    if [i for encoding in encodings for i in encoding.ids] != tokens.input_ids.tolist():
        raise SystemExit("ids differ from the tokenizers library's: no result")
    objective, vocabulary = find_objective("albert"), mask_vocabulary(tokenizer)
    instances = ours.run(
        "instances", lambda: build_instances(tokens, tokenizer, objective, max_seq_length=128, sop=True)
    )
    sides = ours.run("sides", lambda: sides_of(["".join(sentences) for sentences in documents]))
    table = ours.run(
        "masks and table",
        lambda: instance_table(instances, doc_ids, sides, vocabulary, MaskRule(), max_seq_length=128, seed=0),
    )
    ours.run("write", lambda: write_table(table, folder))


def refresh_seconds(source: Path, vocabulary: Path, folder: Path, workers: int) -> float:
    """Seconds of a refresh, without its plan and the start of its processes."""
    settings = refresh_settings(source, vocabulary, folder, workers)
    with worker_pool(workers) as pool:
        list(pool.map(_warm, range(workers)))
        plan = plan_refresh(settings)
        began = time.perf_counter()
        refresh(settings, ProcessRunner(pool, workers), plan)
        return time.perf_counter() - began


def _warm(number: int) -> None:
    # load what a process loads once: jieba's dictionaries and the character tables
    segmenter(()).split("继续A-B赞赞赞赞")
    sketch(measure([["继续"]]).letters, 5)
    clean_and_count("继续" * 2000, CleaningRules())
    time.sleep(1.0)  # so that every process gets one


def main() -> None:
    parser = corpus_options("data_prep", __doc__, characters=8_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sentences, source = load_sentences(options.source), folder / "raw"
        vocabulary = Path(options.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        write_corpus(source, sentences, options.characters, file_characters=options.characters // 16)
        files = find_files(str(source))
        few = files[: max(1, len(files) // 4)]
        characters, part = (sum(len(d.text) for d in read_all(some)) for some in (files, few))
        _warm(0)
        ours, rivals = measure_stages(few, load_tokenizer(vocabulary), folder / "stages")
        seconds = {w: refresh_seconds(source, vocabulary, folder / f"workspace-{w}", w) for w in (1, 2)}
    alone = part / (rivals.seconds["words"] + rivals.seconds["ids"])
    report(
        {
            "sources": source_names(options.source),
            "characters": characters,
            "characters_per_second_by_stage": {name: part / taken for name, taken in ours.seconds.items()},
            "rival_characters_per_second": {name: part / taken for name, taken in rivals.seconds.items()},
            "refresh_characters_per_second": {str(w): characters / taken for w, taken in seconds.items()},
            "two_workers_ratio": seconds[1] / seconds[2],
        },
        alone,
    )


def report(result: dict[str, Any], alone: float) -> None:
    """Write the result; `alone` is the characters a second of the rivals one after the other."""
    speed, scaling = result["refresh_characters_per_second"]["1"], result["two_workers_ratio"]
    stages = result["characters_per_second_by_stage"]
    verdict = (
        f"data_prep: {speed:,.0f} characters/s/core from raw text to shards (goal {GOAL:,}: "
        f"{met(speed >= GOAL)}), {speed / REFERENCE:.1f}x the reference {REFERENCE:,}, {speed / alone:.1f}x "
        f"jieba and the tokenizers library alone in this run; two workers {scaling:.2f}x (goal "
        f"{SCALING_GOAL}: {met(scaling >= SCALING_GOAL)}); "
        f"slowest stage {min(stages, key=stages.__getitem__)}"
    )
    write_result("data_prep", verdict, result)


if __name__ == "__main__":
    main()
