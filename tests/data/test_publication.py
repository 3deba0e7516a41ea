"""A workspace on an S3-compatible server, published from one machine and continued on another."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from data.__main__ import app
from data.catalog import CatalogLost, read_catalog, require_version
from data.errors import InputError
from data.locks import writer_lock
from data.publication import KEPT_MANIFESTS, publish, pull, working_copy
from data.refresh import plan_refresh, unchanged_version
from data.storage import RemoteFolder
from data.terminal import run_app
from data.workspace import Workspace
from tests.conftest import sample_texts
from tests.corpora import ask, refresh_here, refresh_settings, write_jsonl
from tests.s3 import environment, serve_s3
from tests.workers import PreloadedContext

pytest.importorskip("s3fs")
pytest.importorskip("moto")


def publish_and_die(url, folder, sent):
    """Publish like `push`, killed after `sent` files, or after all files but the manifest."""
    store = RemoteFolder(url)
    with writer_lock(store):
        put, paths = store.files.put_file, []

        def put_file(path, place):
            paths.append(path)
            put(path, place) if len(paths) <= sent else os.kill(os.getpid(), signal.SIGKILL)

        store.files.put_file = put_file
        store.create = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        publish(store, Workspace(folder))


def hold_lock(url, pipe):
    with writer_lock(RemoteFolder(url)):
        pipe.send("locked")
        pipe.recv()


def start(work, *arguments):
    process = PreloadedContext().Process(target=work, args=arguments)
    process.start()
    return process


@pytest.fixture(scope="module")
def s3():
    with serve_s3("jixu") as variables, environment(variables):
        yield variables


@pytest.fixture
def url(s3, request):
    return f"s3://jixu/{request.node.name}"


def settings_in(folder, vocabulary_file):
    return refresh_settings(folder / "one", folder / "raw", vocabulary_file)


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples, vocabulary_file):
    """A workspace with the sample in several shards; the vocabulary is outside it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "raw").mkdir()
    shutil.copy(samples / "tea.jsonl", folder / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.refresh.assign.SHARD_CHARACTERS", 8000)
        refresh_here(settings_in(folder, vocabulary_file))
        yield folder


@pytest.fixture
def settings(made, tmp_path, vocabulary_file):
    """A copy of that workspace in `one`, and of its text."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return settings_in(tmp_path, vocabulary_file)


def add(settings, text):
    folder = Path(settings.source[0])
    write_jsonl(folder / f"{len(list(folder.iterdir()))}.jsonl", text)


def send(url, folder):
    store = RemoteFolder(url)
    with writer_lock(store):
        return publish(store, Workspace(folder))


def get(url, folder):
    return pull(RemoteFolder(url), Workspace(folder))


def contents(folder, pattern):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob(pattern) if p.is_file()}


def instances(folder):
    return ask(folder, "select count(*), count(distinct doc_id) from instances")


def test_what_a_config_says_about_words_goes_along_and_counts_as_the_recipe(url, vocabulary_file, tmp_path):
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    *entries, _ = vocabulary_file.read_text(encoding="utf-8").split()
    (folder / "vocab.txt").write_text("\n".join([*entries, "茶叶"]), encoding="utf-8")
    texts = [f"{text}这种茶叶很多人喜欢。" for text in sample_texts()[:4]]
    write_jsonl(tmp_path / "a.jsonl", *texts[:2])
    own = {"corpus": "c", "tokenizer": str(folder / "vocab.txt")}
    settings = refresh_settings(tmp_path / "one", tmp_path / "a.jsonl", vocabulary_file, **own)
    refresh_here(settings)
    before = tokens(tmp_path / "one")
    (folder / "tokenizer_config.json").write_text(json.dumps({"domain_terms": ["茶叶"]}))
    assert unchanged_version(plan_refresh(settings)) is None
    changed = refresh_here(settings)
    assert changed.is_new and tokens(tmp_path / "one") != before
    send(url, tmp_path / "one")
    get(url, tmp_path / "two")
    write_jsonl(tmp_path / "b.jsonl", *texts[2:])
    more = replace(settings, source=(*settings.source, str(tmp_path / "b.jsonl")))
    pulled = refresh_here(replace(more, workspace=tmp_path / "two", tokenizer=None))
    fresh = refresh_here(replace(more, workspace=tmp_path / "three"))
    assert pulled.kept_shards == 1 and pulled.documents == fresh.documents == 4
    assert tokens(tmp_path / "two") == tokens(tmp_path / "three")


def tokens(folder):
    return ask(folder, "select doc_id, input_ids from instances order by all")


def test_another_machine_pulls_the_same_bytes_and_continues(url, settings, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    send(url, one)
    get(url, two)
    for folder in ("shards", "documents", "tokenizers"):
        assert contents(one, f"{folder}/**/*") == contents(two, f"{folder}/**/*")
    assert len(contents(two, "shards/tea/*")) > 4 and instances(one) == instances(two)
    assert send(url, one).number == send(url, two).number == 1  # nothing changed
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    # without a vocabulary: the corpus's own, which was published with it
    result = refresh_here(replace(settings, workspace=two, tokenizer=None))
    assert result.version == 2 and result.kept_shards > 3
    with read_catalog(Workspace(two)) as db:
        assert Path(require_version(db, "tea").tokenizer).is_relative_to(two)
    send(url, two)
    get(url, one)
    assert contents(one, "shards/**/*") == contents(two, "shards/**/*") and instances(one) == instances(two)


def test_an_interrupted_publication_leaves_the_previous_one(url, settings, tmp_path, s3):
    """Killed among the files, then before the manifest."""
    send(url, tmp_path / "one")
    before = instances(tmp_path / "one")
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    refresh_here(settings)
    for sent in (2, 10**9):
        killed = start(publish_and_die, url, settings.workspace, sent)
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        assert get(url, tmp_path / "two").number == 1 and instances(tmp_path / "two") == before
    # the dead writer keeps nobody out, and the files it sent are used or removed
    assert send(url, tmp_path / "one").number == 2
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one") != before


def test_a_workspace_whose_catalog_is_lost_is_not_published(url, settings, tmp_path):
    send(url, tmp_path / "one")
    Workspace(settings.workspace).catalog.unlink()
    with pytest.raises(CatalogLost, match="is gone: jixu doctor --fix restores it"):
        send(url, tmp_path / "one")
    assert get(url, tmp_path / "two").number == 1 and Workspace(tmp_path / "two").catalog.is_file()


def test_a_workspace_with_vocabularies_alone_is_published(url, vocabulary_file, tmp_path):
    folder = tmp_path / "one" / "tokenizers" / "law"
    folder.mkdir(parents=True)
    shutil.copy(vocabulary_file, folder)
    assert run_app(app, ["push", url, "--workspace", str(tmp_path / "one")]) == 0
    get(url, tmp_path / "two")
    assert contents(tmp_path / "two", "tokenizers/*/*") == contents(tmp_path / "one", "tokenizers/*/*")


def test_files_that_no_manifest_lists_are_removed(url, settings, tmp_path):
    store = RemoteFolder(url)
    send(url, tmp_path / "one")
    store.files.pipe_file("files/left-by-a-crash.parquet", b"half")
    for number in range(KEPT_MANIFESTS + 1):
        (tmp_path / "one" / "reports").mkdir(exist_ok=True)
        (tmp_path / "one" / "reports" / "index.html").write_text(f"<p>{number}", encoding="utf-8")
        send(url, tmp_path / "one")
    assert [int(Path(path).stem) for path in store.sizes("manifests")] == [3, 4, 5]
    paths = store.sizes("files")
    assert "files/left-by-a-crash.parquet" not in paths
    assert sum(path.endswith(".html") for path in paths) == KEPT_MANIFESTS
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one")


def test_a_corpus_is_removed_from_a_published_workspace(url, settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    send(url, tmp_path / "one")
    assert run_app(app, ["gc", "--dry-run", "--workspace", url]) == 0
    assert run_app(app, ["remove", "tea", "--workspace", url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tea is gone"
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == [(0, 0)]


def test_of_two_writers_one_is_refused(url, settings, tmp_path, s3, capsys):
    here, there = PreloadedContext().Pipe()
    other = start(hold_lock, url, there)
    try:
        assert here.recv() == "locked"
        with pytest.raises(InputError, match=f"is being written to by process {other.pid} of .* unlock"):
            send(url, tmp_path / "one")
        # a writer let in all the same publishes; whoever pulled before cannot overwrite that
        assert run_app(app, ["unlock", url]) == 0
        send(url, tmp_path / "one")
    finally:
        other.kill()
        other.join()
    refresh_here(replace(settings, workspace=tmp_path / "two", seed=1))
    with pytest.raises(InputError, match="was published by another writer meanwhile"):
        send(url, tmp_path / "two")
    with pytest.raises(InputError, match="was published by another writer meanwhile"):
        get(url, tmp_path / "two")
    assert run_app(app, ["pull", url, "--workspace", str(tmp_path / "three")]) == 0
    assert "publication 1" in capsys.readouterr().out


def test_a_damaged_or_missing_file_is_refused(url, settings, tmp_path):
    manifest = send(url, tmp_path / "one")
    store = RemoteFolder(url)
    name, entry = next((n, e) for n, e in manifest.files.items() if n.startswith("shards/"))
    store.files.pipe_file(entry.stored_as(name), b"PAR1")
    with pytest.raises(InputError, match="is damaged: its sha256 is not"):
        get(url, tmp_path / "two")
    assert not (tmp_path / "two" / name).exists() and not (tmp_path / "two" / "catalog.duckdb").exists()
    store.files.rm_file(entry.stored_as(name))
    with pytest.raises(InputError, match="is gone from"):
        get(url, tmp_path / "two")
    send(url, tmp_path / "one")  # the machine that has it sends it again
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one")


def test_urls_that_hold_no_workspace_are_refused(s3, tmp_path, url, capsys):
    for place, message in [
        ("s3://nowhere/w", "no such bucket"),
        (f"file://{tmp_path}", "a folder needs no URL"),
        ("nonsense://bucket/w", "jixu.remote"),
    ]:
        with pytest.raises(InputError, match=message), working_copy(place):
            pass
    with pytest.raises(InputError, match="nothing is published at"), working_copy(url, read_only=True):
        pass
    assert run_app(app, ["push", url, "--workspace", str(tmp_path / "none")]) == 2
    assert "pass --workspace with the folder to publish" in capsys.readouterr().err
    store = RemoteFolder(url)
    store.files.pipe_file("manifests/00000001.json", b'{"format": 99}')
    with pytest.raises(InputError, match="published by a newer jixu"):
        get(url, tmp_path / "w")
    listed = {"../../evil.sh": {"sha256": "0" * 64, "size": 1}}
    evil = json.dumps({"format": 1, "files": listed}).encode()
    store.files.pipe_file("manifests/00000002.json", evil)
    with pytest.raises(InputError, match="outside a workspace"):
        get(url, tmp_path / "w")
    with environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}):
        assert run_app(app, ["pull", "s3://jixu/w", "--workspace", str(tmp_path / "d")]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_sources_on_s3_are_read_and_read_again_when_they_change(url, settings, tmp_path):
    remote = RemoteFolder(url).files
    lines = Path(settings.source[0], "tea.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(2):
        remote.pipe_file(f"{number}.jsonl", b"".join(lines[number::2]))
    there = replace(settings, source=(f"{url}/*.jsonl",), workspace=tmp_path / "there")
    here = refresh_here(settings)
    first = refresh_here(there)
    assert (first.documents, first.instances) == (here.documents, here.instances)
    assert not refresh_here(there).is_new
    remote.pipe_file("1.jsonl", b"".join(lines[1::2][:-1]))
    remote.invalidate_cache()
    assert refresh_here(there).removed_documents == 1
