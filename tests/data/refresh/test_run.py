"""A whole refresh on the shipped samples: shards, versions, funnel, and what a second one does."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from data.catalog import FunnelRow, add_version, collect_garbage, open_workspace, write_catalog
from data.cleaning import DuplicateRules, QualityRules
from data.errors import InputError
from data.files import sha256
from data.refresh import (
    GateRules,
    InstanceRules,
    MaskingRules,
    describe_changes,
    describe_result,
    preview,
    refresh,
    unchanged_version,
)
from data.refresh.result import describe_left_out
from data.tokenization import load_tokenizer, train_tokenizer
from data.workers import worker_pool
from tests.conftest import sample_sentences, sample_texts
from tests.corpora import NEW, Corpus, refresh_here, write_jsonl
from tests.data.helpers import random_text
from tests.workers import begin


@pytest.fixture
def corpus(tmp_path, samples, vocabulary_file):
    """The corpus 茶 of both samples, not made yet."""
    sources = (samples / "tea.jsonl", samples / "general.txt")
    return Corpus.begin(tmp_path, vocabulary_file, *sources, corpus="茶")


def shard_files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): sha256(p) for p in sorted((root / "shards").rglob("*.parquet"))}


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_an_instance_reads_like_its_document(corpus, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("data.refresh.build._BATCH_CHARACTERS", 2000)
    if kind == "sentencepiece":
        train_tokenizer(sample_sentences(), kind=kind, vocab_size=6000).save(tmp_path / "sp")
        corpus = corpus.changed(tokenizer=str(tmp_path / "sp"))
    assert corpus.refresh().sop
    texts = corpus.ask("select doc_id, text from document_texts")
    documents = {doc_id: "".join(text.split()) for doc_id, text in texts}
    tokenizer = load_tokenizer(corpus.plan().tokenizer_path)
    rows = corpus.ask("select doc_id, input_ids, segment_b_start from instances")
    assert rows
    for doc_id, ids, b in rows:
        for part in [ids[1 : b - 1], ids[b:-1]] if b else [ids[1:-1]]:
            for known in tokenizer.decode(part).replace(" ", "").split("<unk>"):
                assert known in documents[doc_id]


def test_all_files_of_a_version_and_the_folders_on_their_way_are_on_disk_before_its_commit(
    corpus, monkeypatch
):
    flushed, missing = set(), []
    fsync, root = os.fsync, corpus.settings.workspace

    def identity(state: os.stat_result) -> tuple[int, int]:
        return state.st_dev, state.st_ino

    def flush(descriptor: int) -> None:
        fsync(descriptor)
        flushed.add(identity(os.fstat(descriptor)))

    def add(*arguments, **options):
        folders = [root / "shards", root / "documents"]
        places = [root.parent, root, *folders, *(place for folder in folders for place in folder.rglob("*"))]
        missing.extend(place for place in places if identity(place.stat()) not in flushed)
        assert len(places) > 7
        return add_version(*arguments, **options)

    monkeypatch.setattr("os.fsync", flush)
    monkeypatch.setattr("data.refresh.stages.add_version", add)
    refresh_here(corpus.settings)
    assert missing == []


def test_any_workers_make_the_same_bytes_and_a_change_touches_its_shards_alone(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("data.refresh.assign.SHARD_CHARACTERS", 4000)
    corpus.refresh()
    refresh(corpus.changed(workspace=tmp_path / "w2", workers=2).settings)
    before, two = shard_files(corpus.root), shard_files(tmp_path / "w2")
    assert before == two and len(before) > 3
    # new and removed documents touch only their shards
    corpus.put("tea", *sample_texts()[1:], f"{NEW}先看口沿，再看杯底。")
    result = corpus.refresh()
    assert result.version == 2 and result.removed_documents == 1
    assert result.new_shards == 2 and result.kept_shards == len(before) - 1
    ids = corpus.ask("select doc_id from document_texts")
    assert len(ids) == len(set(ids)) == result.documents
    firsts = "select first_version, count(*) from documents group by all order by all"
    assert corpus.ask(firsts) == [(1, result.documents - 1), (2, 1)]
    stricter = corpus.refresh(quality=QualityRules(min_characters=100))
    assert stricter.new_shards and not stricter.kept_shards
    assert stricter.removed_documents == result.documents - stricter.documents > 0


def test_a_version_stands_while_its_sources_and_files_are_as_they_were(corpus, monkeypatch):
    def current(**changes):
        return unchanged_version(corpus.plan(**changes))

    assert current() is None
    made, again = corpus.refresh(), corpus.refresh()
    assert made.is_new and not again.is_new and (again.version, again.new_shards) == (1, 0)
    found = current()
    assert (found.version, found.is_new, found.tokens) == (1, False, made.tokens)
    assert "is still current" in describe_result(found)[0]
    # a small corpus says how much it and later ones hold out
    small = replace(made, held_out_share=0.35)
    assert any(line.startswith("35% of the documents are held out") for line in describe_result(small))
    for quiet in (replace(small, held_out_share=0.03), replace(small, version=2)):
        assert not any("held out" in line for line in describe_result(quiet))
    row = FunnelRow(6, "instances", "without_order", 0, 0, "no_pair", 1)
    many = replace(small, sop=True, instances=10_000, funnel=(row,))
    assert "prediction on (100.0% of instances)" in describe_result(many)[1]  # a share of 0.0% is not listed
    assert current(masking=MaskingRules(max_ngram=1)) is None
    one, two = sorted(map(str, corpus.raw.iterdir()))
    assert current(source=(two, one)) is None
    assert "in another order" in describe_changes(preview(corpus.plan(source=(two, one))))
    kept = Path(one).read_bytes()
    Path(one).write_bytes(kept + b"\n")
    assert current() is None
    Path(one).write_bytes(kept)
    assert current()
    with monkeypatch.context() as patch:  # that a source is new or gone is found without reading another
        patch.setattr("data.refresh.plan.size_and_digest", None)
        assert current(source=(one, two, corpus.settings.tokenizer)) is current(source=(two,)) is None
    next(corpus.place.shards("").rglob("*.parquet")).unlink()
    assert current() is None


def test_a_workspace_within_a_source_is_not_read(corpus, monkeypatch):
    corpus = corpus.changed(workspace=corpus.raw / "w")
    first = corpus.refresh()
    assert unchanged_version(corpus.plan()) and not corpus.refresh().is_new
    within = corpus.root / "raw"
    shutil.copytree(corpus.raw, within, ignore=shutil.ignore_patterns("w"))
    monkeypatch.setenv("HOME", str(corpus.raw))
    for source in (str(within), "~/w/raw"):
        assert corpus.refresh(source=(source,), corpus="within").documents == first.documents
    with pytest.raises(InputError, match="holds nothing but files of the workspace"):
        corpus.plan(source=(str(corpus.root),))


def test_repeated_short_and_foreign_documents_are_counted(corpus):
    source = corpus.raw
    lines = ["".join(chr(0x4E00 + 31 * (26 * n + i)) for i in range(26)) for n in range(20)]  # no end
    (source / "C#").mkdir()
    for name, content in (
        ("more.txt", "茶。\n"),
        ("C#/english.txt", "Nothing here is written in Chinese.\n"),
        ("urls.txt", "见https://a.cn/b?c=1。又见 http://a.cn/d/ 和 www.a.cn 的介绍。"),
        ("page.md", "\n".join(lines)),
    ):
        (source / name).write_text(content, encoding="utf-8")
    (source / "z-again.jsonl").write_bytes((source / "tea.jsonl").read_bytes())
    (source / "C#" / "mainland.txt").write_bytes("这一份文件是用国标码写的。".encode("gb18030"))
    result = corpus.refresh()
    # neither of which the rules ask for
    assert corpus.ask("select count(perplexity), count(language) from documents") == [(0, 0)]
    with open_workspace(corpus.root) as statistics:
        funnel = statistics.funnel("茶").fetchall()
        lost = {(stage, unit, reason): n for _, stage, unit, _, _, reason, n in funnel if reason}
        repeated = len(sample_texts())
        assert lost["filter", "documents", "too_short"] == 1
        assert lost["filter", "documents", "too_little_chinese"] == 1
        assert lost["deduplicate", "documents", "duplicate"] == repeated
        assert len(statistics.dropped("茶").fetchall()) == repeated + 2
        again, english, short = statistics.dropped("茶", each=1).project("beginning").fetchall()
        assert again[0] in {text.replace("\n", "")[:100] for text in sample_texts()}
        assert (english, short) == (("Nothing here is written in Chinese.",), ("茶。",))
        kept = "select count(beginning) from documents where dropped_reason is null"
        assert statistics.sql(kept).fetchall() == [(0,)]
        lost_documents = [("duplicate", repeated), ("too_little_chinese", 1), ("too_short", 1)]
        assert result.counts("documents") == lost_documents
        assert describe_left_out(result) == [
            f"left out {repeated + 2} document(s) (some by: jixu corpus dropped 茶): {repeated} duplicate, "
            "1 too_little_chinese, 1 too_short",
            "decoded: 1 from gb18030",
            "removed 3 URL(s) from the text",
            "text files read: 4 as a document each, 1 as a sentence a line, 1 as wrapped lines",
        ]
        rows = [FunnelRow(0, "read", "documents", 0, 0, f"reason {i}", 9 - i) for i in range(7)]
        many = replace(result, funnel=tuple(rows))
        (line,) = describe_left_out(many)
        assert "left out 42" in line and line.endswith("5 reason 4, 7 for 2 other reason(s)")
        (line,) = describe_left_out(replace(result, funnel=tuple(rows[:6])))
        assert line.endswith("5 reason 4, 4 reason 5")  # one more is named
        unread = FunnelRow(0, "read", "documents", 0, 0, "not_supported", 9)
        _, advice = describe_left_out(replace(result, funnel=(unread,)))
        assert advice.startswith("not_supported: turn files such as PDF")
        lost = FunnelRow(3, "guard", "characters", 9000, 2000, "in_evaluation_set", 7000)
        (line,) = describe_left_out(replace(result, funnel=(lost,)))
        assert line.startswith("in_evaluation_set: 7,000 characters") and "--guard.share" in line
        assert not any("a.cn" in text for text in statistics.texts("茶"))
        for unit in ("documents", "characters"):
            rows = [(step, a, b) for step, _, u, a, b, _, _ in funnel if u == unit]
            steps = sorted(set(rows))
            assert len(steps) == 7
            assert [b for _, _, b in steps[:-1]] == [a for _, a, _ in steps[1:]]  # what goes out comes in
    (source / "reviews.txt").write_text("这家的茶很好，下次还来。\n" * 9000, encoding="utf-8")
    hint = describe_left_out(corpus.refresh())[-1]
    assert hint.startswith("1 of them with a document of over 100,000 ") and "text-format lines" in hint


def test_a_workspace_whose_name_is_a_pattern_reads_no_file_of_its_neighbours(tmp_path, vocabulary_file):
    texts, corpora = sample_texts(), []
    for number, name in enumerate(("wa", "w[a]", "w*")):
        source = str(tmp_path / "raw" / f"{number}.jsonl")
        corpus = Corpus.begin(tmp_path, vocabulary_file).changed(workspace=tmp_path / name, source=(source,))
        for count in (2, 3):
            write_jsonl(Path(source), *texts[3 * number : 3 * number + count])
            assert corpus.refresh().documents == count
        corpora.append(corpus)
    for corpus in corpora:
        found = corpus.ask("select source_uri from documents where dropped_reason is null")
        assert found == [(f"{corpus.raw}#line={line}",) for line in (1, 2, 3)]
        assert len(corpus.texts()) == 3
    with pytest.raises(InputError, match=r"workspace .*w\?: DuckDB opens no file there"):
        corpus.plan(workspace=tmp_path / "w?")


def test_sources_of_pairs_get_no_sentence_order(corpus):
    corpus.put("pairs", *(f"第{i}种茶怎么泡？用多热的水？" for i in range(30)))
    result = corpus.refresh()
    assert dict(result.counts("without_order"))["source_without_order"] == 30
    files = "select distinct split_part(source_uri, '#', 1) from documents join instances using (doc_id)"
    ordered = corpus.ask(f"{files} where sop_label is not null")
    assert sorted(Path(file).name for (file,) in ordered) == ["general.txt", "tea.jsonl"]
    missing = corpus.ask("select count(*) from instances where sop_label is null")
    assert missing == [(sum(count for _, count in result.counts("without_order")),)]
    alone = {"source": (str(corpus.raw / "pairs.jsonl"),)}
    assert not corpus.refresh(**alone, corpus="pairs").sop
    forced = {"corpus": "forced", "instances": InstanceRules(sop="on")}
    assert corpus.refresh(**alone, **forced).sop
    corpus.put("pairs", "第一种茶怎么泡？")
    with pytest.raises(InputError, match="sop=on: every document is a single sentence"):
        corpus.refresh(**alone, **forced)


def test_sentence_order_that_a_source_gains_or_loses_is_that_of_a_first_refresh(tea, tmp_path):
    tea = tea.changed(duplicates=DuplicateRules(near=None), gates=GateRules(max_lost_documents=1))
    texts = sample_texts()
    pages, remarks = texts[:6], [text.split("。")[0] + "。" for text in texts[6:20]]
    order = "select doc_id, sop_label, count(*) from instances group by all order by all"
    reasons = "select reason, count from funnel where version = ? and unit = 'without_order' order by all"
    steps = [(remarks[:4], False), ([*remarks[:4], *pages], True), ([*remarks, *pages], False), (pages, True)]
    for number, (lines, sop) in enumerate(steps, 1):
        tea.put("a", *lines)
        fresh = tea.changed(workspace=tmp_path / str(number))
        assert tea.refresh().sop == fresh.refresh().sop == sop
        assert tea.ask(order) == fresh.ask(order)
        assert tea.ask(reasons, number) == fresh.ask(reasons, 1)


def test_a_failed_commit_leaves_the_catalog_as_it_was_and_readers_and_writers_do_not_lock_it(tea):
    tea.put("a", *sample_texts()[:4])
    tea.refresh()
    before = sha256(tea.place.catalog)
    with pytest.raises(RuntimeError, match="on purpose"), write_catalog(tea.place) as db:
        db.execute("delete from versions")
        raise RuntimeError("on purpose")
    assert sha256(tea.place.catalog) == before
    with open_workspace(tea.root) as statistics:
        process = begin(tea.changed(seed=1).refresh)
        process.join()
        assert process.exitcode == 0
        assert len(statistics.versions()) == 1  # what was there when it was opened
        assert len(tea.ask("from versions")) == 2


@pytest.mark.slow
def test_a_refresh_killed_at_any_point_leaves_the_old_version_and_the_next_finishes(corpus):
    """SIGKILL at six points spread over a refresh, of which nothing is left over."""
    corpus = corpus.changed(gates=GateRules(max_unknown_share=1))  # what is new has rare characters
    seconds = run_for(corpus, None)
    documents = open_counts(corpus)[1]
    rng = random.Random(0)
    killed_before_commit = 0
    for point in range(6):
        quarters = [random_text(12, f"{point}-{number}") for number in range(400)]
        corpus.put(f"new-{point}", *("。".join(quarters[n::100]) + "。" for n in range(100)))
        # a run that finishes shows that the machine was busier when the first was timed
        seconds = run_for(corpus, seconds * (point + rng.random()) / 6) or seconds
        version, counted = open_counts(corpus)
        assert (version, counted) in [(point + 1, documents), (point + 2, documents + 100)]
        killed_before_commit += version == point + 1
        again = corpus.refresh()
        documents += 100
        assert (again.version, again.documents) == (point + 2, documents)
        assert not list(corpus.root.rglob("*.tmp")) and not list(corpus.root.glob("staging/*"))
    assert killed_before_commit >= 3
    corpus.refresh(corpus="whole")
    texts = "select doc_id, text from document_texts where corpus = ? order by doc_id"
    assert corpus.ask(texts, "茶") == corpus.ask(texts, "whole")
    gone = collect_garbage(corpus.place, keep=1)
    assert len(gone.versions) == 6
    assert shard_files(corpus.root).keys() == {path for (path,) in corpus.ask("select path from shards")}


def refresh_in_session(corpus):
    os.setsid()
    corpus.refresh()


def run_for(corpus, limit):
    """Refresh in a process that is killed after `limit` seconds; how long it took unless it was killed."""
    began = time.perf_counter()
    process = begin(refresh_in_session, corpus)
    process.join(limit)
    if not process.is_alive():
        assert process.exitcode == 0
        return time.perf_counter() - began
    with suppress(ProcessLookupError):  # it has no session yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    return None


def open_counts(corpus):
    """The current version of the corpus and the number of documents in its files."""
    counts = """
        select version, documents, instances,
            (select count(*) from document_texts where corpus = '茶'),
            (select count(*) from documents where corpus = '茶' and dropped_reason is null),
            (select count(*) from instances where corpus = '茶')
        from versions where corpus = '茶' order by version desc limit 1
        """
    ((version, documents, instances, *counted),) = corpus.ask(counts)
    assert counted == [documents, documents, instances]
    return version, documents


def begin_worker_and_wait(pids):
    with worker_pool(1) as pool:
        pids.send(pool.submit(os.getpid).result())
        time.sleep(600)


def test_workers_end_with_the_process_that_began_them():
    receiver, sender = Pipe(duplex=False)
    process = begin(begin_worker_and_wait, sender)
    worker = psutil.Process(receiver.recv())
    process.kill()
    worker.wait(60)


def test_a_plan_is_made_again_if_a_refresh_committed_meanwhile(corpus):
    plan = corpus.plan()
    (corpus.raw / "later.txt").write_text("后来的一篇讲茶壶。紫砂的最好。", encoding="utf-8")
    first = refresh_here(corpus.settings, plan)
    assert first.version == 1 and preview(corpus.plan()).read == (str(corpus.raw / "later.txt"),)
    second = refresh_here(corpus.settings, plan)
    assert second.version == 2 and second.documents == first.documents + 1
