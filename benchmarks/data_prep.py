"""Characters a second from raw text to committed shards, stage by stage, against the libraries people use.

    python -m benchmarks.data_prep [--source FILE ...] [--characters N]

The rivals run in the same process on the same text and must give the same words and ids: jieba for words, the
`tokenizers` library (which transformers' fast BERT tokenizer is) for ids. Together they are the least that a
preparation built on them takes, without cleaning, filters, deduplication, masks or writing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jieba
import numpy as np

from benchmarks.support.corpora import load_sentences, source_names, write_corpus
from benchmarks.support.results import write_result
from data.cleaning import CleaningRules, clean_and_count, measure, sketch, split_sentences
from data.instances import (
    MaskRule,
    build_instances,
    find_objective,
    instance_table,
    mask_vocabulary,
    table_digest,
    tokenize_documents,
    write_table,
)
from data.refresh import RefreshSettings, refresh
from data.refresh import plan as planning
from data.refresh import run as refreshing
from data.refresh.build import segmenter
from data.sources import RawDocument, document_id, find_files, read_documents
from data.tokenization import Tokenizer, WordPieceTokenizer, load_tokenizer

REFERENCE = 96_000  # characters/s of albert_zh's create_pretraining_data on one core of such a machine
GOAL, SCALING_GOAL = 1_000_000, 1.9
_BATCH = 1 << 18


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def timed(work: Callable[[], object]) -> tuple[object, float]:
    began = time.perf_counter()
    made = work()
    return made, time.perf_counter() - began


def make_vocabulary(sentences: list[str], folder: Path) -> Path:
    """A vocabulary of every character of the text, where none is given."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [c for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    characters = sorted(set("".join(sentences).lower()) | {chr(c) for c in range(0x4E00, 0x9FA6)})
    entries = dict.fromkeys([*special, *pieces, *(f"##{c}" for c in pieces), *characters])
    WordPieceTokenizer([entry for entry in entries if not entry.isspace()]).save(folder)
    return folder / "vocab.txt"


def measure_stages(files: list[str], tokenizer: Tokenizer, folder: Path) -> tuple[dict[str, float], dict]:
    """Seconds of each stage over the same documents, and the rivals' for words and ids."""
    seconds: dict[str, float] = {}

    def stage(name: str, work: Callable[[], object]) -> object:
        made, taken = timed(work)
        seconds[name] = seconds.get(name, 0.0) + taken
        return made

    words_of = segmenter(())
    exact = jieba.Tokenizer()
    exact.initialize()
    rules = CleaningRules()
    rival = {"words": 0.0, "ids": 0.0}
    raw = stage("read", lambda: [d for f in files for d in read_documents(f) if isinstance(d, RawDocument)])
    cleaned = stage("clean", lambda: [clean_and_count(d.text, rules)[0] for d in raw])
    split = stage("split", lambda: [split_sentences(text) for text in cleaned])
    begin = 0
    while begin < len(split):
        end, size = begin, 0
        while end < len(split) and size < _BATCH:
            size += len(cleaned[end])
            end += 1
        documents = split[begin:end]
        ids = [document_id(text) for text in cleaned[begin:end]]
        measures = stage("measure", lambda d=documents: measure(d))
        stage("near duplicates", lambda m=measures: sketch(m, 5))
        text = "".join([f"{sentence}\n" for d in documents for sentence in d])
        lengths = stage("words", lambda t=text: words_of.lengths(t))
        theirs, taken = timed(lambda t=text: exact.lcut(t))
        rival["words"] += taken
        if list(map(len, theirs)) != lengths.tolist():
            raise SystemExit("words differ from jieba's: no result")
        counts = np.array([len(d) for d in documents])
        tokens = stage(
            "ids", lambda i=ids, t=text, n=lengths, c=counts: tokenize_documents(i, t, n, c, tokenizer, 125)
        )
        lines = text.split("\n")[:-1]
        encodings, taken = timed(lambda s=lines: tokenizer.library.encode_batch(s, add_special_tokens=False))
        rival["ids"] += taken
        if [i for e in encodings for i in e.ids] != tokens.input_ids.tolist():
            raise SystemExit("ids differ from the tokenizers library's: no result")
        instances = stage(
            "instances",
            lambda t=tokens: build_instances(
                t, tokenizer, find_objective("albert"), max_seq_length=128, sop=True
            ),
        )
        table = stage(
            "masks and table",
            lambda i=instances, d=ids: instance_table(
                i, d, mask_vocabulary(tokenizer), MaskRule(), max_seq_length=128, seed=0
            ),
        )
        stage("write", lambda t=table: write_table(t, folder, table_digest(t)))
        begin = end
    return seconds, rival


def refresh_speed(source: Path, vocabulary: Path, folder: Path, workers: int) -> tuple[float, float, int]:
    """Seconds of a whole refresh without and with the start of its processes, and characters in."""
    settings = RefreshSettings(
        corpus="c",
        source=(str(source),),
        workspace=folder,
        tokenizer=str(vocabulary),
        workers=workers,
    )
    with refreshing.worker_pool(workers) as pool:
        list(pool.map(_warm, range(workers)))
        plan = planning.plan(settings)
        began = time.perf_counter()
        with refreshing.locked(plan.workspace, "c"):
            reading = [
                pool.submit(refreshing.read_batch, batch) for batch in planning.reading_batches(plan, workers)
            ]
            sources = [source for future in reading for source in future.result()]
            division = refreshing.divide(plan, sources)
            pieces = division.assignment.pieces
            shards = list(
                pool.map(refreshing.build, pieces, [plan] * len(pieces), [division.sop] * len(pieces))
            )
            refreshing.commit(plan, sources, division, shards)
        taken = time.perf_counter() - began
    whole = RefreshSettings(**{**vars(settings), "workspace": folder.with_name(f"{folder.name}-whole")})
    return taken, timed(lambda: refresh(whole))[1], sum(shard.characters for shard in shards if shard)


def _warm(number: int) -> None:
    # what a process needs once: jieba's dictionaries and the character tables
    segmenter(()).split("继续A-B赞赞赞赞")
    sketch(measure([["继续"]]), 5)
    clean_and_count("继续" * 2000, CleaningRules())
    time.sleep(1.0)  # so that every process gets one


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_prep", description=__doc__)
    parser.add_argument("--source", action="append", default=[], help="real text [the samples]")
    parser.add_argument("--tokenizer", help="vocab.txt [every character]")
    parser.add_argument("--characters", type=int, default=8_000_000, help="of made-up text [%(default)s]")
    parser.add_argument(
        "--as-is", action="store_true", help="take the sources themselves, not text made of them"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sentences = load_sentences(given.source)
        vocabulary = Path(given.tokenizer or make_vocabulary(sentences, folder / "vocabulary"))
        tokenizer = load_tokenizer(vocabulary)
        source = folder / "raw"
        if given.as_is:
            source.mkdir()
            for number, name in enumerate(uri for s in given.source for uri in find_files(s)):
                path = Path(name).resolve()
                (source / f"{number:05d}-{path.name}").symlink_to(path)
        else:
            write_corpus(source, sentences, given.characters, file_characters=given.characters // 16)
        files = find_files(str(source))
        characters = sum(len(d.text) for f in files for d in read_documents(f) if isinstance(d, RawDocument))
        _warm(0)
        seconds, rival = measure_stages(files[: max(1, len(files) // 4)], tokenizer, folder / "stages")
        part = sum(
            len(d.text)
            for f in files[: max(1, len(files) // 4)]
            for d in read_documents(f)
            if isinstance(d, RawDocument)
        )
        runs = {w: refresh_speed(source, vocabulary, folder / f"workspace-{w}", w) for w in (1, 2)}
    stages = {name: part / taken for name, taken in seconds.items()}
    speeds = {w: characters / run[0] for w, run in runs.items()}
    scaling = speeds[2] / speeds[1]
    ratio = (rival["words"] + rival["ids"]) / (seconds["words"] + seconds["ids"])
    whole = speeds[1] * (rival["words"] + rival["ids"]) / part
    slowest = min(stages, key=lambda name: stages[name])
    verdict = (
        f"data_prep: {speeds[1]:,.0f} characters/s/core from raw text to shards (goal {GOAL:,}: "
        f"{_met(speeds[1] >= GOAL)}), {speeds[1] / REFERENCE:.1f}x the reference {REFERENCE:,}, {whole:.1f}x "
        f"jieba and the tokenizers library alone in this run; two workers {scaling:.2f}x (goal "
        f"{SCALING_GOAL}: {_met(scaling >= SCALING_GOAL)}); "
        f"slowest stage {slowest}"
    )
    write_result(
        "data_prep",
        verdict,
        {
            "sources": source_names(given.source),
            "characters": characters,
            "characters_per_second_by_stage": stages,
            "rival_characters_per_second": {name: part / taken for name, taken in rival.items()},
            "words_and_ids_ratio": ratio,
            "refresh_characters_per_second": {str(w): speed for w, speed in speeds.items()},
            "refresh_with_start_of_processes": {str(w): characters / run[1] for w, run in runs.items()},
            "two_workers_ratio": scaling,
        },
    )


if __name__ == "__main__":
    main()
