"""A whole refresh on the shipped samples: shards, versions, funnel, and what a second one does."""

import json
import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from data.catalog import FunnelRow, collect_garbage, open_workspace, read_catalog, sole_writer, write_catalog
from data.cleaning import DuplicateRules, QualityRules
from data.errors import InputError
from data.files import sha256
from data.refresh import (
    GateRules,
    InstanceRules,
    MaskingRules,
    describe_changes,
    describe_result,
    plan_refresh,
    preview,
    read_batch,
    refresh,
    unchanged_version,
)
from data.refresh.result import describe_left_out
from data.workers import worker_pool
from data.workspace import Workspace
from tests.conftest import sample_texts
from tests.corpora import ask, refresh_here, refresh_settings, texts_of, write_jsonl
from tests.workers import PreloadedContext


@pytest.fixture
def source(tmp_path, samples):
    return copy_samples(samples, tmp_path)


def copy_samples(samples, folder):
    (folder / "raw").mkdir()
    for name in ("tea.jsonl", "general.txt"):
        shutil.copy(samples / name, folder / "raw")
    return folder / "raw"


@pytest.fixture
def settings(tmp_path, source, vocabulary_file):
    return refresh_settings(tmp_path / "w", source, vocabulary_file, corpus="茶")


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples, vocabulary_file):
    """The settings and the result of a refresh that several tests look at."""
    folder = tmp_path_factory.mktemp("made")
    source = copy_samples(samples, folder)
    settings = refresh_settings(folder / "w", source, vocabulary_file, corpus="茶")
    return settings, refresh_here(settings)


def shard_files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): sha256(p) for p in sorted((root / "shards").rglob("*.parquet"))}


def test_an_instance_reads_like_its_document(made):
    settings, _ = made
    with open_workspace(settings.workspace) as statistics:
        documents = dict(statistics.sql("select doc_id, text from document_texts").fetchall())
        tokenizer = statistics.tokenizer("茶")
        rows = statistics.sql("select doc_id, input_ids, segment_b_start from instances").fetchall()
        assert rows
        for doc_id, ids, b in rows:
            text = documents[doc_id].replace("\n", "")
            for part in [ids[1 : b - 1], ids[b:-1]] if b else [ids[1:-1]]:
                assert tokenizer.decode(part) in text


def test_same_input_gives_the_same_bytes_with_one_and_two_workers(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("data.refresh.assign.SHARD_CHARACTERS", 4000)
    refresh_here(settings)
    refresh(replace(settings, workspace=tmp_path / "w2", workers=2))
    one, two = shard_files(tmp_path / "w"), shard_files(tmp_path / "w2")
    assert one == two and len(one) > 3


def test_a_sentencepiece_vocabulary_works_as_well(settings, tmp_path, samples):
    from data.tokenization import train_tokenizer

    sentences = [line for line in (samples / "general.txt").read_text(encoding="utf-8").split("\n") if line]
    train_tokenizer(sentences, kind="sentencepiece", vocab_size=6000).save(tmp_path / "sp")
    result = refresh_here(replace(settings, tokenizer=str(tmp_path / "sp")))
    with open_workspace(settings.workspace) as statistics:
        samples_of = statistics.sample_instances("茶", 20).to_arrow_table().to_pylist()
    documents = "\0".join(text.replace("\n", "") for text in texts_of(settings.workspace, "茶"))
    for sample in samples_of:
        inner = sample["text"].removeprefix("[CLS]").removesuffix("[SEP]").replace(" ", "")
        assert all(piece in documents for piece in re.split(r"\[SEP\]|<unk>", inner))
    assert result.instances and result.sop


def test_a_version_stands_while_its_sources_and_files_are_as_they_were(settings, source):
    assert unchanged_version(plan_refresh(settings)) is None
    made, again = refresh_here(settings), refresh_here(settings)
    assert made.is_new and not again.is_new and (again.version, again.new_shards) == (1, 0)
    found = unchanged_version(plan_refresh(settings))
    assert (found.version, found.is_new, found.tokens) == (1, False, made.tokens)
    assert "is still current" in describe_result(found)[0]
    assert unchanged_version(plan_refresh(replace(settings, masking=MaskingRules(max_ngram=1)))) is None
    one, two = sorted(map(str, source.iterdir()))
    other = plan_refresh(replace(settings, source=(two, one)))
    assert unchanged_version(other) is None and "in another order" in describe_changes(preview(other))
    kept = Path(one).read_bytes()
    Path(one).write_bytes(kept + b"\n")
    assert unchanged_version(plan_refresh(settings)) is None
    Path(one).write_bytes(kept)
    assert unchanged_version(plan_refresh(settings))
    next((settings.workspace / "shards").rglob("*.parquet")).unlink()
    assert unchanged_version(plan_refresh(settings)) is None


def test_a_workspace_within_a_source_is_not_read(settings, source):
    settings = replace(settings, workspace=source / "w")
    first = refresh_here(settings)
    assert unchanged_version(plan_refresh(settings)) and not refresh_here(settings).is_new
    within = source / "w" / "raw"
    shutil.copytree(source, within, ignore=shutil.ignore_patterns("w"))
    named = refresh_here(replace(settings, source=(str(within),), corpus="within"))
    assert named.documents == first.documents


def test_new_and_removed_documents_touch_only_their_shards(settings, source, monkeypatch):
    monkeypatch.setattr("data.refresh.assign.SHARD_CHARACTERS", 4000)
    refresh_here(settings)
    before = shard_files(settings.workspace)
    lines = (source / "tea.jsonl").read_text(encoding="utf-8").splitlines()
    added = json.dumps(
        {"text": "新来的一篇讲怎样选茶杯。白瓷的最公道。先看口沿，再看杯底。"}, ensure_ascii=False
    )
    (source / "tea.jsonl").write_text("\n".join([*lines[1:], added]) + "\n", encoding="utf-8")
    result = refresh_here(settings)
    assert result.version == 2 and result.removed_documents == 1
    assert result.new_shards == 2 and result.kept_shards == len(before) - 1
    ids = ask(settings.workspace, "select doc_id from document_texts")
    assert len(ids) == len(set(ids)) == result.documents
    firsts = "select first_version, count(*) from documents group by all order by all"
    assert ask(settings.workspace, firsts) == [(1, result.documents - 1), (2, 1)]
    stricter = refresh_here(replace(settings, quality=QualityRules(min_characters=100)))
    assert stricter.new_shards and not stricter.kept_shards
    assert stricter.removed_documents == result.documents - stricter.documents > 0


def test_repeated_short_and_foreign_documents_are_counted(settings, source):
    (source / "more.txt").write_text("茶。\n", encoding="utf-8")
    (source / "C#").mkdir()
    (source / "C#" / "english.txt").write_text("Nothing here is written in Chinese.\n", encoding="utf-8")
    (source / "z-again.jsonl").write_bytes((source / "tea.jsonl").read_bytes())
    (source / "C#" / "mainland.txt").write_bytes("这一份文件是用国标码写的。".encode("gb18030"))
    urls = "见https://a.cn/b?c=1。又见 http://a.cn/d/ 和 www.a.cn 的介绍。"
    (source / "urls.txt").write_text(urls, encoding="utf-8")
    lines = ["".join(chr(0x4E00 + 31 * (26 * n + i)) for i in range(26)) for n in range(20)]  # no end
    (source / "page.md").write_text("\n".join(lines), encoding="utf-8")
    result = refresh_here(settings)
    with open_workspace(settings.workspace) as statistics:
        funnel = statistics.funnel("茶").fetchall()
        lost = {(stage, unit, reason): n for _, stage, unit, _, _, reason, n in funnel if reason}
        repeated = len((source / "tea.jsonl").read_text(encoding="utf-8").splitlines())
        assert lost["filter", "documents", "too_short"] == 1
        assert lost["filter", "documents", "too_little_chinese"] == 1
        assert lost["deduplicate", "documents", "duplicate"] == repeated
        assert len(statistics.dropped("茶").fetchall()) == repeated + 2
        lost_documents = [("duplicate", repeated), ("too_little_chinese", 1), ("too_short", 1)]
        assert result.counts("documents") == lost_documents
        assert describe_left_out(result) == [
            f"left out {repeated + 2} document(s), each a row of the view documents: {repeated} duplicate, "
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
        lost = FunnelRow(3, "guard", "characters", 9000, 2000, "in_evaluation_set", 7000)
        (line,) = describe_left_out(replace(result, funnel=(lost,)))
        assert line.startswith("in_evaluation_set: 7,000 characters") and "--guard.share" in line
        assert not any("a.cn" in text for text in statistics.texts("茶"))
        for unit in ("documents", "characters"):
            rows = [(step, a, b) for step, _, u, a, b, _, _ in funnel if u == unit]
            steps = sorted(set(rows))
            assert len(steps) == 7
            assert [b for _, _, b in steps[:-1]] == [a for _, a, _ in steps[1:]]  # what goes out comes in


def test_a_small_corpus_says_how_much_it_and_later_ones_hold_out(settings):
    small = replace(refresh_here(settings), held_out_share=0.35)
    assert any(line.startswith("35% of the documents are held out") for line in describe_result(small))
    for quiet in (replace(small, held_out_share=0.03), replace(small, version=2)):
        assert not any("held out" in line for line in describe_result(quiet))


def test_a_share_of_instances_that_rounds_to_none_is_not_listed(settings):
    made = refresh_here(settings)
    row = FunnelRow(6, "instances", "without_order", 0, 0, "no_pair", 1)
    many = replace(made, sop=True, instances=10_000, funnel=(row,))
    assert "prediction on (100.0% of instances)" in describe_result(many)[1]


def test_listings_are_on_disk_before_their_batch_is_done(settings, monkeypatch):
    synced = []
    monkeypatch.setattr("data.files.sync", lambda path: synced.append((path, path.is_file())))
    planned = plan_refresh(settings)
    sources = read_batch(planned.files, planned)
    assert sorted(synced) == sorted((source.listing, True) for source in sources)
    assert len(synced) == 2


def test_a_workspace_whose_name_is_a_pattern_reads_no_file_of_its_neighbours(tmp_path, vocabulary_file):
    texts, names = sample_texts(), ("wa", "w[a]", "w*")
    for number, name in enumerate(names):
        source = tmp_path / f"{number}.jsonl"
        settings = refresh_settings(tmp_path / name, source, vocabulary_file)
        for count in (2, 3):
            write_jsonl(source, *texts[3 * number : 3 * number + count])
            assert refresh_here(settings).documents == count
    for number, name in enumerate(names):
        found = ask(tmp_path / name, "select source_uri from documents where dropped_reason is null")
        assert found == [(f"{tmp_path / f'{number}.jsonl'}#line={line}",) for line in (1, 2, 3)]
        assert len(texts_of(tmp_path / name)) == 3
    with pytest.raises(InputError, match=r"workspace .*w\?: DuckDB opens no file there"):
        plan_refresh(replace(settings, workspace=tmp_path / "w?"))


def test_sources_of_pairs_get_no_sentence_order(settings, source):
    pairs = [f"第{i}种茶怎么泡？用多热的水？" for i in range(30)]
    write_jsonl(source / "pairs.jsonl", *pairs)
    result = refresh_here(settings)
    assert dict(result.counts("without_order"))["source_without_order"] == 30
    files = "select distinct split_part(source_uri, '#', 1) from documents join instances using (doc_id)"
    ordered = ask(settings.workspace, f"{files} where sop_label is not null")
    assert sorted(Path(file).name for (file,) in ordered) == ["general.txt", "tea.jsonl"]
    missing = ask(settings.workspace, "select count(*) from instances where sop_label is null")
    assert missing == [(sum(count for _, count in result.counts("without_order")),)]
    for path in source.iterdir():
        path.unlink() if path.name != "pairs.jsonl" else None
    assert not refresh_here(replace(settings, corpus="pairs")).sop
    forced = replace(settings, corpus="forced", instances=InstanceRules(sop="on"))
    assert refresh_here(forced).sop


@pytest.mark.parametrize(
    "change, message",
    [
        ({"source": ("/no/such/place", "/nor/this")}, "place does not exist; source /nor/this does"),
        ({"source": ()}, "no source given"),
        ({"tokenizer": "nope"}, "no tokenizer 'nope'"),
        ({"tokenizer": None}, "no tokenizer given"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(settings, change, message):
    with pytest.raises(InputError, match=message):
        plan_refresh(replace(settings, **change))
    assert not settings.workspace.exists()


def test_sentence_order_that_a_source_gains_or_loses_is_that_of_a_refresh_into_an_empty_workspace(
    tmp_path, vocabulary_file
):
    settings = refresh_settings(tmp_path / "w", tmp_path / "a.jsonl", vocabulary_file)
    settings = replace(settings, duplicates=DuplicateRules(near=None), gates=GateRules(max_lost_documents=1))
    texts = sample_texts()
    pages, remarks = texts[:6], [text.split("。")[0] + "。" for text in texts[6:20]]
    order = "select doc_id, sop_label, count(*) from instances group by all order by all"
    reasons = "select reason, count from funnel where version = ? and unit = 'without_order' order by all"
    few, many = [*remarks[:4], *pages], [*remarks, *pages]
    for number, (lines, sop) in enumerate(
        [(remarks[:4], False), (few, True), (many, False), (pages, True)], 1
    ):
        write_jsonl(tmp_path / "a.jsonl", *lines)
        fresh = replace(settings, workspace=tmp_path / str(number))
        assert refresh_here(settings).sop == refresh_here(fresh).sop == sop
        assert ask(settings.workspace, order) == ask(fresh.workspace, order)
        assert ask(settings.workspace, reasons, number) == ask(fresh.workspace, reasons, 1)


def test_a_second_refresh_of_a_corpus_at_once_is_refused(settings):
    with sole_writer(Workspace(settings.workspace), "茶"), pytest.raises(InputError, match="another process"):
        refresh_here(settings)


def test_a_failed_commit_leaves_the_catalog_as_it_was(made):
    settings, _ = made
    before = sha256(settings.workspace / "catalog.duckdb")
    with pytest.raises(RuntimeError, match="on purpose"), write_catalog(Workspace(settings.workspace)) as db:
        db.execute("delete from versions")
        raise RuntimeError("on purpose")
    assert sha256(settings.workspace / "catalog.duckdb") == before


def delete_funnel(workspace):
    with write_catalog(Workspace(workspace)) as db:
        db.execute("delete from funnel")


def test_a_moved_workspace_answers_and_readers_and_writers_do_not_lock_each_other_out(made, tmp_path):
    settings, result = made
    moved = shutil.copytree(settings.workspace, tmp_path / "moved")
    with open_workspace(moved) as statistics:
        assert statistics.sql("select count(*) from instances").fetchall() == [(result.instances,)]
        process = PreloadedContext().Process(target=delete_funnel, args=(moved,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert statistics.funnel("茶").fetchall()  # what was there when it was opened
        with read_catalog(Workspace(moved)) as db:
            assert not db.sql("from funnel").fetchall()


@pytest.mark.slow
def test_a_refresh_killed_at_any_point_leaves_the_old_version_and_the_next_finishes(settings, source):
    """SIGKILL at six points spread over a refresh: the version before is whole, nothing is left over, and a
    second run makes the version that was under way.
    """
    seconds = run_for(settings, None)
    documents = open_counts(settings)[1]
    rng = random.Random(0)
    killed_before_commit = 0
    for point in range(6):
        write_jsonl(source / f"new-{point}.jsonl", *random_documents(100, point))
        # a run that finishes shows that the machine was busier when the first was timed
        seconds = run_for(settings, seconds * (point + rng.random()) / 6) or seconds
        version, counted = open_counts(settings)
        assert (version, counted) in [(point + 1, documents), (point + 2, documents + 100)]
        killed_before_commit += version == point + 1
        again = refresh_here(settings)
        documents += 100
        assert (again.version, again.documents) == (point + 2, documents)
        assert not list(settings.workspace.rglob("*.tmp")) and not list(settings.workspace.glob("staging/*"))
    assert killed_before_commit >= 3
    refresh_here(replace(settings, corpus="whole"))
    texts = "select doc_id, text from document_texts where corpus = ? order by doc_id"
    assert ask(settings.workspace, texts, "茶") == ask(settings.workspace, texts, "whole")
    gone = collect_garbage(Workspace(settings.workspace), keep=1)
    assert len(gone.versions) == 6
    kept = {path for (path,) in ask(settings.workspace, "select path from shards")}
    assert shard_files(settings.workspace).keys() == kept


def refresh_in_session(settings):
    os.setsid()
    refresh_here(settings)


def run_for(settings, limit):
    """Refresh in a process that is killed after `limit` seconds; how long it took unless it was killed."""
    process = PreloadedContext().Process(target=refresh_in_session, args=(settings,))
    began = time.perf_counter()
    process.start()
    process.join(limit)
    if not process.is_alive():
        assert process.exitcode == 0
        return time.perf_counter() - began
    with suppress(ProcessLookupError):  # it has no session yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    return None


def open_counts(settings):
    """The current version of the corpus and the number of documents in its files."""
    counts = """
        select version, documents, instances,
            (select count(*) from document_texts where corpus = '茶'),
            (select count(*) from documents where corpus = '茶' and dropped_reason is null),
            (select count(*) from instances where corpus = '茶')
        from versions where corpus = '茶' order by version desc limit 1
        """
    ((version, documents, instances, *counted),) = ask(settings.workspace, counts)
    assert counted == [documents, documents, instances]
    return version, documents


def random_documents(count, seed):
    """Documents that have nothing in common."""
    rng = random.Random(f"documents {seed}")
    characters = sorted({c for text in sample_texts() for c in text if "\u4e00" <= c <= "\u9fff"})
    return ["".join("".join(rng.choices(characters, k=12)) + "。" for _ in range(4)) for _ in range(count)]


def begin_worker_and_wait(pids):
    with worker_pool(1) as pool:
        pids.send(pool.submit(os.getpid).result())
        time.sleep(600)


def test_workers_end_with_the_process_that_began_them():
    context = PreloadedContext()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=begin_worker_and_wait, args=(sender,))
    process.start()
    worker = psutil.Process(receiver.recv())
    process.kill()
    worker.wait(60)


def test_a_plan_made_before_is_made_again_only_if_another_refresh_committed_meanwhile(settings, source):
    plan = plan_refresh(settings)
    (source / "later.txt").write_text("后来的一篇讲茶壶。紫砂的最好。", encoding="utf-8")
    first = refresh_here(settings, plan)
    assert first.version == 1 and preview(plan_refresh(settings)).read == (str(source / "later.txt"),)
    second = refresh_here(settings, plan)
    assert second.version == 2 and second.documents == first.documents + 1
