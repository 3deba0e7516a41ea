"""A workspace on an S3-compatible server: published on one machine, pulled and continued on another."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data.catalog import open_workspace, read_catalog, require_version
from data.errors import InputError
from data.publication import KEPT, Store, main, publish, pull, working_copy
from data.refresh import RefreshSettings, refresh
from data.workspace import Workspace, default_workspace, local_folder
from tests import ROOT
from tests.s3 import environment, serve_s3

pytest.importorskip("s3fs")
pytest.importorskip("moto")

# publishes as `push` does, and is killed when it has sent some files, or all but the manifest
KILLED = """
import os, sys
from data import publication
from data.workspace import Workspace
from pathlib import Path

def die(*_): os.kill(os.getpid(), 9)

store, left = publication.Store(sys.argv[1]), int(sys.argv[3])
send, store.create = store.system.put_file, die

def put_file(*given):
    global left
    left -= 1
    if left < 0: die()
    send(*given)

store.system.put_file = put_file
with store.writing():
    publication.publish(store, Workspace(Path(sys.argv[2])))
"""
HOLDS = """
import sys, time
from data.publication import Store

with Store(sys.argv[1]).writing():
    print("has it", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def s3():
    with serve_s3("jixu") as variables, environment(variables):
        yield variables


@pytest.fixture
def url(s3, request):
    return f"s3://jixu/{request.node.name}"


def settings_in(folder, vocabulary_file):
    shared = {"corpus": "tea", "tokenizer": str(vocabulary_file), "workers": 1}
    return RefreshSettings(source=(str(folder / "raw"),), workspace=folder / "one", **shared)


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples, vocabulary_file):
    """The sample in several shards, made once; the vocabulary lies outside the workspace."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "raw").mkdir()
    shutil.copy(samples / "tea.jsonl", folder / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.refresh.stages.SHARD_CHARACTERS", 8000)
        refresh(settings_in(folder, vocabulary_file))
        yield folder


@pytest.fixture
def settings(made, tmp_path, vocabulary_file):
    """A copy of it in `one`, and of its text."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return settings_in(tmp_path, vocabulary_file)


def add(settings, text):
    folder = Path(settings.source[0])
    line = json.dumps({"text": text}, ensure_ascii=False)
    (folder / f"{len(list(folder.iterdir()))}.jsonl").write_text(line, encoding="utf-8")


def send(url, folder):
    store = Store(url)
    with store.writing():
        return publish(store, Workspace(folder))


def get(url, folder):
    return pull(Store(url), Workspace(folder))


def contents(folder, pattern):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob(pattern) if p.is_file()}


def instances(folder):
    with open_workspace(folder) as statistics:
        return statistics.sql("select count(*), count(distinct doc_id) from instances").fetchall()


def test_another_machine_has_the_same_bytes_and_goes_on_from_them(url, settings, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    send(url, one)
    get(url, two)
    for folder in ("shards", "documents", "tokenizers"):
        assert contents(one, f"{folder}/**/*") == contents(two, f"{folder}/**/*")
    assert len(contents(two, "shards/tea/*")) > 4 and instances(one) == instances(two)
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    # without a vocabulary given: the corpus's own, which was carried along
    result = refresh(replace(settings, workspace=two, tokenizer=None))
    assert result.version == 2 and result.kept_shards > 3
    with read_catalog(Workspace(two)) as db:
        assert Path(require_version(db, "tea").tokenizer).is_relative_to(two)
    send(url, two)
    get(url, one)
    assert contents(one, "shards/**/*") == contents(two, "shards/**/*") and instances(one) == instances(two)


def test_nothing_new_is_published_where_nothing_changed(url, settings, tmp_path):
    assert send(url, tmp_path / "one").number == 1
    assert send(url, tmp_path / "one").number == 1
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two")
    assert send(url, tmp_path / "two").number == 1  # its views point elsewhere: that is no change


@pytest.mark.parametrize("sent", [2, 10**9], ids=["among the files", "before the manifest"])
def test_a_publication_that_is_cut_off_leaves_the_one_before(url, sent, settings, tmp_path, s3):
    send(url, tmp_path / "one")
    before = instances(tmp_path / "one")
    add(settings, "新来的一篇讲怎样选茶杯。白瓷的最公道。")
    refresh(settings)
    killed = subprocess.run([sys.executable, "-c", KILLED, url, settings.workspace, str(sent)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert get(url, tmp_path / "two").number == 1 and instances(tmp_path / "two") == before
    # the dead writer does not keep others out, and what it sent is taken up or removed
    assert send(url, tmp_path / "one").number == 2
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one") != before


def test_what_no_publication_lists_is_removed(url, settings, tmp_path):
    store = Store(url)
    send(url, tmp_path / "one")
    store.system.pipe_file(f"{store.root}/files/left-by-a-crash.parquet", b"half")
    for number in range(KEPT + 1):
        (tmp_path / "one" / "reports").mkdir(exist_ok=True)
        (tmp_path / "one" / "reports" / "index.html").write_text(f"<p>{number}", encoding="utf-8")
        send(url, tmp_path / "one")
    assert store.numbers() == [KEPT, KEPT + 1, KEPT + 2]
    names = store.sizes("files")
    assert "left-by-a-crash.parquet" not in names and sum(name.endswith(".html") for name in names) == KEPT
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one")


def test_of_two_writers_one_is_refused(url, settings, tmp_path, s3, capsys):
    other = subprocess.Popen([sys.executable, "-c", HOLDS, url], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline()
        with pytest.raises(InputError, match=f"is being written to by process {other.pid} of .* unlock"):
            send(url, tmp_path / "one")
        # one that is let in all the same publishes; who pulled before cannot write over it
        assert main(["unlock", url]) == 0
        send(url, tmp_path / "one")
    finally:
        other.kill()
        other.wait()
    refresh(replace(settings, workspace=tmp_path / "two", seed=1))
    with pytest.raises(InputError, match="was published by another writer meanwhile"):
        send(url, tmp_path / "two")
    with pytest.raises(InputError, match="was published by another writer meanwhile"):
        get(url, tmp_path / "two")
    assert main(["pull", url, "--workspace", str(tmp_path / "three")]) == 0
    assert "publication 1" in capsys.readouterr().out


def test_a_damaged_file_is_not_taken_for_a_whole_one(url, settings, tmp_path):
    manifest = send(url, tmp_path / "one")
    store = Store(url)
    name, entry = next((n, e) for n, e in manifest.files.items() if n.startswith("shards/"))
    store.system.pipe_file(store.place(name, entry), b"PAR1")
    with pytest.raises(InputError, match="is damaged: its sha256 is not"):
        get(url, tmp_path / "two")
    assert not (tmp_path / "two" / name).exists() and not (tmp_path / "two" / "catalog.duckdb").exists()
    store.system.rm_file(store.place(name, entry))
    with pytest.raises(InputError, match="is gone from"):
        get(url, tmp_path / "two")
    send(url, tmp_path / "one")  # the machine that has it sends it again
    get(url, tmp_path / "two")
    assert instances(tmp_path / "two") == instances(tmp_path / "one")


def test_urls_that_hold_no_workspace_are_refused(s3, tmp_path, url):
    for place, message in [
        ("s3://nowhere/w", "no such bucket"),
        (f"file://{tmp_path}", "a folder needs no URL"),
        ("nonsense://bucket/w", "jixu.remote"),
    ]:
        with pytest.raises(InputError, match=message), working_copy(place):
            pass
    with pytest.raises(InputError, match="nothing is published at"), working_copy(url, read_only=True):
        pass
    store = Store(url)
    store.system.pipe_file(f"{store.root}/manifests/00000001.json", b'{"format": 99}')
    with pytest.raises(InputError, match="published by a newer jixu"):
        get(url, tmp_path / "w")
    listed = {"../../evil.sh": {"sha256": "0" * 64, "size": 1}}
    evil = json.dumps({"format": 1, "files": listed}).encode()
    store.system.pipe_file(f"{store.root}/manifests/00000002.json", evil)
    with pytest.raises(InputError, match="outside a workspace"):
        get(url, tmp_path / "w")
    dead = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "flows", "corpus", "pull", "s3://jixu/w", "--workspace", str(tmp_path / "d")],
        cwd=ROOT, env=os.environ | dead, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "cannot be reached" in done.stderr and "Traceback" not in done.stderr


def test_sources_on_s3_are_read_and_read_again_when_they_change(url, settings, tmp_path):
    system, folder = Store(url).system, url.removeprefix("s3://")
    lines = Path(settings.source[0], "tea.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(2):
        system.pipe_file(f"{folder}/{number}.jsonl", b"".join(lines[number::2]))
    there = replace(settings, source=(f"{url}/*.jsonl",), workspace=tmp_path / "there")
    here = refresh(settings)
    first = refresh(there)
    assert (first.documents, first.instances) == (here.documents, here.instances)
    assert not refresh(there).is_new
    system.pipe_file(f"{folder}/1.jsonl", b"".join(lines[1::2][:-1]))
    system.invalidate_cache()
    assert refresh(there).removed_documents == 1


def test_the_copy_of_a_url_is_this_machines_default(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JIXU_WORKSPACE", "s3://jixu/law/")
    assert default_workspace() == local_folder("s3://jixu/law") == local_folder("s3://jixu/law/")
    assert default_workspace().parent == tmp_path / "jixu" and default_workspace().name.startswith("law-")
    assert local_folder("s3://other/law") != default_workspace()
