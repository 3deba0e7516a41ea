"""A workspace on an S3-compatible server, published from one machine and continued on another."""

import json
import os
import shutil
import signal
import socket
from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path

import pytest

from data.__main__ import corpus as app
from data.catalog import CatalogLost, read_catalog, require_version
from data.errors import InputError, disk_trouble
from data.locks import WRITER, writer_lock
from data.publication import INDEX, KEPT_MANIFESTS, publish, pull, working_copy
from data.refresh import unchanged_version
from data.storage import RemoteFolder
from data.terminal import run_app
from data.workspace import Workspace
from tests.conftest import sample_texts
from tests.corpora import NEW, Corpus
from tests.s3 import environment, serve_s3
from tests.workers import begin

pytest.importorskip("s3fs")
pytest.importorskip("moto")


def publish_and_die(url, folder, sent, has_manifest=False):
    """Publish like `push`, killed after `sent` files, after all files but the manifest, or after that."""
    store = RemoteFolder(url)
    with writer_lock(store):
        put, paths, make = store.files.put_file, [], store.create

        def put_file(path, place):
            paths.append(path)
            put(path, place) if len(paths) <= sent else os.kill(os.getpid(), signal.SIGKILL)

        def create(*given):
            if has_manifest:
                make(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        store.files.put_file, store.create = put_file, create
        publish(store, Workspace(folder))


def hold_lock(url, pipe):
    with writer_lock(RemoteFolder(url)):
        pipe.send("locked")
        pipe.recv()


@pytest.fixture(scope="module")
def s3():
    with serve_s3("jixu") as variables, environment(variables):
        yield variables


@pytest.fixture
def url(s3, request):
    return f"s3://jixu/{request.node.name}"


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples, vocabulary_file):
    """The sample in several shards; the vocabulary is outside the workspace."""
    corpus = Corpus.begin(tmp_path_factory.mktemp("made"), vocabulary_file, samples / "tea.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.refresh.assign.SHARD_CHARACTERS", 8000)
        corpus.refresh()
        yield corpus


@pytest.fixture
def one(made, tmp_path):
    """A copy of that workspace and of its text."""
    shutil.copytree(made.root.parent, tmp_path, dirs_exist_ok=True)
    return made.changed(workspace=tmp_path / "w", source=(str(tmp_path / "raw"),))


@pytest.fixture
def two(tea, tmp_path):
    """The corpus on another machine, which has nothing yet, and no vocabulary outside the workspace."""
    return tea.changed(workspace=tmp_path / "two", tokenizer=None)


def send(url, corpus):
    store = RemoteFolder(url)
    with writer_lock(store):
        return publish(store, corpus.place)


def get(url, corpus):
    return pull(RemoteFolder(url), corpus.place)


def contents(corpus, pattern):
    return {str(p.relative_to(corpus.root)): p.read_bytes() for p in corpus.root.glob(pattern) if p.is_file()}


def instances(corpus):
    return corpus.ask("select count(*), count(distinct doc_id) from instances")


def tokens(corpus):
    return corpus.ask("select doc_id, input_ids from instances order by all")


def test_terms_of_a_config_go_along_and_count_as_the_recipe(url, tea, two, vocabulary_file, tmp_path):
    folder = tea.place.experiments / "vocabulary"  # which is not published
    folder.mkdir(parents=True)
    *entries, _ = vocabulary_file.read_text(encoding="utf-8").split()
    (folder / "vocab.txt").write_text("\n".join([*entries, "茶叶"]), encoding="utf-8")
    texts = [f"{text}这种茶叶很多人喜欢。" for text in sample_texts()[:4]]
    tea.put("a", *texts[:2])
    tea = tea.changed(tokenizer=str(folder / "vocab.txt"))
    tea.refresh()
    before = tokens(tea)
    (folder / "tokenizer_config.json").write_text(json.dumps({"domain_terms": ["茶叶"]}))
    assert unchanged_version(tea.plan()) is None
    assert tea.refresh().is_new and tokens(tea) != before
    send(url, tea)
    get(url, two)
    tea.put("b", *texts[2:])
    three = tea.changed(workspace=tmp_path / "three")
    pulled, fresh = two.refresh(), three.refresh()
    assert pulled.kept_shards == 1 and pulled.documents == fresh.documents == 4
    assert tokens(two) == tokens(three)


def test_another_machine_pulls_the_same_bytes_and_continues(url, one, two):
    send(url, one)
    get(url, two)
    for folder in ("shards", "documents", "tokenizers"):
        assert contents(one, f"{folder}/**/*") == contents(two, f"{folder}/**/*")
    assert len(contents(two, "shards/tea/*")) > 4 and instances(one) == instances(two)
    for path in two.place.shards("tea").iterdir():  # as where old files of a cache are cleared away
        path.unlink()
    get(f"{url}/", two)
    assert send(url, one).number == send(url, two).number == 1  # nothing changed
    one.put("new", NEW)
    # without a vocabulary: the corpus's own, which was published with it
    result = two.refresh()
    assert result.version == 2 and result.kept_shards > 3
    with read_catalog(two.place) as db:
        assert Path(require_version(db, "tea").tokenizer).is_relative_to(two.root)
    kept = {name for name in contents(one, "shards/tea/*") if (two.root / name).is_file()}
    for name in kept:  # a copy that was changed, too, gets back what is cleared away
        (two.root / name).unlink()
    own = contents(two, "backup/*")
    get(url, two)
    assert contents(two, "backup/*") == own != contents(one, "backup/*")
    send(url, two)
    get(url, one)
    assert contents(one, "shards/**/*") == contents(two, "shards/**/*") and instances(one) == instances(two)


def test_an_interrupted_publication_leaves_the_previous_one(url, one, two):
    """Killed among the files, before the manifest, and after it, which this copy does not know of then."""
    send(url, one)
    before = instances(one)
    one.put("new", NEW)
    one.refresh()
    for sent in (2, 10**9):
        killed = begin(publish_and_die, url, one.root, sent)
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        assert get(url, two).number == 1 and instances(two) == before
    # the dead writer keeps nobody out, and the files it sent are used or removed
    assert send(url, one).number == 2
    get(url, two)
    assert instances(two) == instances(one) != before
    one.put("newer", NEW[:-1])
    one.refresh()
    begin(publish_and_die, url, one.root, 10**9, True).join()
    assert send(url, one).number == 3 == get(url, two).number
    assert instances(two) == instances(one)


def test_a_workspace_without_a_corpus_is_published_but_for_its_locks_and_work(url, tea, two, vocabulary_file):
    lasting = ("backup", "documents", "evaluations", "lexicons", "models", "reports", "shards", "tokenizers")
    for name in (*lasting, "experiments", "locks"):
        (tea.root / name / ".law").mkdir(parents=True)
        shutil.copy(vocabulary_file, tea.root / name / ".law" / "vocab.txt")
    law = tea.root / "models" / ".law"
    law.symlink_to(law.rename(tea.root / "law"))  # as to another disk
    assert run_app(app, ["push", url, "--workspace", str(tea.root)]) == 0
    get(url, two)
    assert contents(two, "*/*/*").keys() == {f"{name}/.law/vocab.txt" for name in lasting}
    assert contents(two, "tokenizers/*/*") == contents(tea, "tokenizers/*/*")


def test_files_that_no_manifest_lists_are_removed(url, one, two):
    store = RemoteFolder(url)
    send(url, one)
    get(url, two)
    store.files.pipe_file("files/left-by-a-crash.parquet", b"half")
    one.place.report("").mkdir()
    one.place.report("half.html.tmp").touch()
    for number in range(KEPT_MANIFESTS + 1):
        one.place.report("index.html").write_text(f"<p>{number}", encoding="utf-8")
        send(url, one)
    assert [int(Path(path).stem) for path in store.sizes("manifests")] == [3, 4, 5]
    paths = store.sizes("files")
    assert "files/left-by-a-crash.parquet" not in paths and not any(p.endswith(".tmp") for p in paths)
    assert sum(path.endswith(".html") for path in paths) == KEPT_MANIFESTS
    two.place.report("").mkdir()
    two.place.report("index.html").write_text("<p>another", encoding="utf-8")
    for _ in range(2):  # a copy of a publication whose manifest is gone, then a folder that was never a copy
        with pytest.raises(InputError, match="was published by another writer meanwhile"):
            send(url, two)
        (two.root / INDEX).unlink(missing_ok=True)
    shutil.rmtree(two.root)
    get(url, two)
    assert instances(two) == instances(one)


def test_what_is_lost_here_is_not_published_and_what_is_lost_there_is_published_again(url, one, two):
    send(url, one)
    whole = instances(one)
    next(one.place.shards("tea").glob("*-*.parquet")).unlink()
    with pytest.raises(InputError, match="1 published file.* gone from .*: jixu corpus pull brings"):
        send(url, one)
    get(url, one)
    assert instances(one) == whole and send(url, one).number == 1
    one.place.catalog.unlink()
    one.place.report("").mkdir()
    one.place.report("mine.html").touch()
    get(url, one)  # not the published catalog, which does not know what is new here
    with pytest.raises(CatalogLost, match="is gone: jixu doctor --fix restores it"):
        send(url, one)
    assert get(url, two).number == 1 and two.place.catalog.is_file()
    RemoteFolder(url).files.rm("manifests", recursive=True)
    before = contents(two, "**/*")
    with pytest.raises(InputError, match="lost publications: it holds 0, .* is a copy of 1"):
        pull(RemoteFolder(url), two.place, may_be_empty=True)
    assert contents(two, "**/*") == before
    assert send(url, two).number == 2
    three = two.changed(workspace=two.root.parent / "three")
    assert get(url, three).number == 2 and instances(three) == instances(two)
    RemoteFolder(url).files.rm("manifests", recursive=True)
    other = Workspace(two.root.parent / "other")
    other.report("").mkdir(parents=True)
    for number in (1, 2):  # by chance as many publications as before
        other.report("page.html").write_text(f"<p>{number}")
        assert publish(RemoteFolder(url), other).number == number
    with pytest.raises(InputError, match="was published by another writer meanwhile"):
        send(url, three)
    assert get(url, three).number == 2 and not three.place.catalog.exists()
    assert contents(three, "*/*") == contents(other, "*/*")


def test_a_manifest_created_unheard_is_its_own_and_a_folder_written_to_is_refused(url, one, two, monkeypatch):
    store = RemoteFolder(url)
    create = store.create
    store.create = lambda *given: create(*given) and create(*given)  # as a client that tries again does
    with writer_lock(store):
        publish(store, one.place)
    assert send(url, one).number == 1
    page, store = one.place.report("index.html"), RemoteFolder(url)
    page.parent.mkdir()
    page.write_text("<p>0", encoding="utf-8")
    put = store.files.put_file
    with monkeypatch.context() as patch, pytest.raises(InputError, match="written to while it was published"):
        patch.setattr(store.files, "put_file", lambda *paths: (page.write_text("<p>1"), put(*paths)))
        publish(store, one.place)
    publish(store, one.place)
    get(url, two)
    assert contents(two, "reports/*") == {"reports/index.html": b"<p>1"}


def test_a_corpus_is_removed_from_a_published_workspace(url, one, two, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with working_copy(f"{url}-new") as copy:  # a writer may begin it
        assert copy.root.is_dir() and RemoteFolder(f"{url}-new").files.exists(WRITER)
    send(url, one)
    with writer_lock(RemoteFolder(url)), working_copy(url, read_only=True) as copy:  # which needs no lock
        copy.tokenizers.mkdir(exist_ok=True)
        (copy.tokenizers / "mine.txt").touch()
    assert get(url, two).number == 1
    assert run_app(app, ["gc", "--dry-run", "--workspace", url]) == 0
    assert run_app(app, ["remove", "tea", "--workspace", url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tea is gone"
    next(two.place.shards("tea").iterdir()).unlink()  # as where a cache is cleared
    get(url, two)
    assert instances(two) == [(0, 0)] and not contents(two, "shards/**/*")
    for work, corpus in ((get, two), (send, one)):
        with pytest.raises(InputError, match=f"is a copy of {url}, not of {url}-2: choose another folder"):
            work(f"{url}-2", corpus)


def test_of_two_writers_one_is_refused_but_not_for_one_that_a_containers_restart_ended(
    url, one, two, tmp_path, vocabulary_file, capsys
):
    store = RemoteFolder(url)
    here, refusal = socket.gethostname(), "written to by"
    for host, year, message in ((here, 2026, None), (here, 2999, refusal), ("another", 2026, refusal)):
        left = {"host": host, "process": os.getpid(), "since": f"{year}-01-01T00:00:00+00:00"}
        store.create(WRITER, json.dumps(left).encode())
        with pytest.raises(InputError, match=message) if message else nullcontext(), writer_lock(store):
            store.files.pipe_file(WRITER, b"null")  # as if it was unlocked, and locked by another
        assert store.files.exists(WRITER)
        store.files.rm_file(WRITER)
    here, there = Pipe()
    other = begin(hold_lock, url, there)
    try:
        assert here.recv() == "locked"
        with pytest.raises(InputError, match=f"is being written to by process {other.pid} of .* unlock"):
            send(url, one)
        # a writer let in all the same publishes; whoever pulled before cannot overwrite that
        assert run_app(app, ["unlock", url]) == 0
        send(url, one)
    finally:
        other.kill()
        other.join()
    two.refresh(seed=1, tokenizer=str(vocabulary_file))
    for work in (send, get):
        with pytest.raises(InputError, match="was published by another writer meanwhile"):
            work(url, two)
    assert run_app(app, ["pull", url, "--workspace", str(tmp_path / "three")]) == 0
    assert "publication 1" in capsys.readouterr().out


def test_a_damaged_or_missing_file_is_refused(url, one, two):
    manifest = send(url, one)
    store = RemoteFolder(url)
    name, entry = next((n, e) for n, e in manifest.files.items() if n.startswith("shards/"))
    path = entry.stored_as(name)
    for spoil, message in [
        (lambda: store.files.pipe_file(path, b"PAR1"), "is damaged: its sha256 is not"),
        (lambda: store.files.rm_file(path), "is gone from"),
    ]:
        spoil()
        with pytest.raises(InputError, match=message):
            get(url, two)
        assert not (two.root / name).exists() and not two.place.catalog.exists()
        send(url, one)  # the machine that has it sends it again
        get(url, two)
        assert instances(two) == instances(one)
        shutil.rmtree(two.root)


def test_urls_that_hold_no_workspace_are_refused(s3, tea, tmp_path, url, capsys):
    for place, message in [
        ("s3://nowhere/w", "no such bucket"),
        (f"file://{tmp_path}", "a folder needs no URL"),
        (str(tmp_path), "is no URL, such as s3://"),
        ("nonsense://bucket/w", "jixu.remote"),
    ]:
        with pytest.raises(InputError, match=message):
            send(place, tea)
    with pytest.raises(InputError, match="nothing is published at"), working_copy(url, read_only=True):
        pass
    assert run_app(app, ["push", url, "--workspace", str(tmp_path / "none")]) == 2
    assert "pass --workspace with the folder to publish" in capsys.readouterr().err
    listed = {"../../evil.sh": {"sha256": "0" * 64, "size": 1}}
    for number, content, message in [
        (1, {"format": 99}, "published by a newer jixu"),
        (2, {"format": 1, "files": listed}, "outside a workspace"),
    ]:
        RemoteFolder(url).files.pipe_file(f"manifests/0000000{number}.json", json.dumps(content).encode())
        with pytest.raises(InputError, match=message):
            get(url, tea)
    with environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}):
        assert run_app(app, ["pull", "s3://jixu/w", "--workspace", str(tmp_path / "d")]) == 2
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_here_is_no_fault_of_the_url(url):
    with pytest.raises(OSError) as found:
        RemoteFolder(url).transfer(lambda text: Path("/dev/full").write_text(text), ["a pulled file"])
    assert "the disk is full" in disk_trouble(found.value)


def test_sources_on_s3_are_read_and_read_again_when_they_change(url, one, tmp_path):
    remote = RemoteFolder(url).files
    lines = (one.raw / "tea.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(2):
        remote.pipe_file(f"{number}.jsonl", b"".join(lines[number::2]))
    there = one.changed(source=(f"{url}/*.jsonl",), workspace=tmp_path / "there")
    here, first = one.refresh(), there.refresh()
    assert (first.documents, first.instances) == (here.documents, here.instances)
    assert not there.refresh().is_new
    remote.pipe_file("1.jsonl", b"".join(lines[1::2][:-1]))
    remote.invalidate_cache()
    assert there.refresh().removed_documents == 1
