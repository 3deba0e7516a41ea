import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from data.catalog import collect_garbage, open_workspace, read_catalog, write_catalog
from data.catalog.database import intact
from data.errors import InputError, disk_trouble
from data.tokenization import load_tokenizer
from data.workspace import Workspace
from tests.corpora import make_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory, samples, vocabulary_file):
    """A workspace with a vocabulary of its own."""
    root = tmp_path_factory.mktemp("workspace")
    load_tokenizer(vocabulary_file).save(root / "tokenizers" / "tea")
    make_corpus(root, "tea", samples / "tea.jsonl", root / "tokenizers" / "tea" / "vocab.txt")
    return root


@pytest.fixture
def copy(made, tmp_path):
    """A copy of it under an odd name."""
    return Path(shutil.copytree(made, tmp_path / "version=7" / "doc_id=it's a copy"))


def state(root):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in root.rglob("*")}


def test_a_copy_at_another_path_is_queried_and_nothing_is_written_to_it(copy):
    before = state(copy)
    with open_workspace(copy) as statistics:
        tables = ("versions", "shards", "documents", "document_texts", "instances")
        found = [statistics.sql(f"from {table}").fetchall() for table in tables]
        assert all(found) and len(list(statistics.texts("tea"))) == len(found[3])
        assert statistics.unknown_share("tea") < 0.01
        paths = statistics.sql("select distinct tokenizer from corpora").fetchall()
        assert paths == [(str(copy / "tokenizers" / "tea" / "vocab.txt"),)]
    assert state(copy) == before
    assert (copy / "catalog.duckdb").stat().st_size < 1 << 19  # every version copies it


def test_a_corpus_without_all_its_files_or_none_has_no_figures(copy):
    next((copy / "shards" / "tea").iterdir()).unlink()
    with pytest.warns(UserWarning, match="jixu doctor.* The views have no rows of it"):
        statistics = open_workspace(copy)
    with statistics:
        for figures in (statistics.unknown_share, statistics.tokens, statistics.dropped):
            with pytest.raises(InputError, match="files of tea are gone or damaged in .*run jixu doctor"):
                figures("tea")
            with pytest.raises(InputError, match="no corpus 'te' in this workspace"):
                figures("te")


def test_files_that_go_while_a_workspace_is_open_are_told_in_a_line(copy):
    with open_workspace(copy) as statistics:
        shutil.rmtree(copy / "documents")
        with pytest.raises(duckdb.IOException) as gone:
            statistics.dropped("tea").fetchall()
        assert "No files found" in disk_trouble(gone.value) and "\n" not in disk_trouble(gone.value)
        with pytest.raises(InputError, match="is gone or damaged .* run jixu doctor"):
            next(statistics.texts("tea"))


def test_a_catalog_that_is_open_for_writing_elsewhere_is_not_called_damaged(copy):
    place = Workspace(copy)
    hold = "import duckdb, sys; db = duckdb.connect(sys.argv[1]); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(place.catalog)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match="is open for writing elsewhere: close it there"):
            read_catalog(place)
        other.communicate(b"\n")
    with duckdb.connect(str(place.catalog)), pytest.raises(InputError, match="is open for writing elsewhere"):
        read_catalog(place)
    read_catalog(place).close()
    refused = duckdb.IOException('IO Error: Cannot open file "catalog.duckdb": Permission denied')
    with pytest.raises(duckdb.IOException), intact(place):
        raise refused
    assert "Permission denied (a disk failed" in disk_trouble(refused)


def test_a_strangers_catalog_runs_no_sql_of_its_own_and_removes_nothing_outside_its_workspace(copy, tmp_path):
    written, outside = tmp_path / "written.csv", tmp_path / "outside"
    outside.mkdir()
    with duckdb.connect(str(copy / "catalog.duckdb")) as db:
        db.execute(f"""create table "a as select 1; copy (select 1) to '{written}'; --" (number integer)""")
        db.execute("create view other as from read_text('/no such file')")
    with open_workspace(copy) as statistics:
        assert statistics.sql("from versions").fetchall()
    with write_catalog(Workspace(copy)) as db:
        for table in ("corpora", "versions"):
            db.execute(f"update {table} set corpus = ?", [str(outside)])
    with pytest.raises(InputError, match="outside': use 1 to 64 letters"):
        collect_garbage(Workspace(copy))
    assert outside.is_dir() and not written.exists()


@pytest.mark.parametrize("renames", range(3))
def test_a_first_writer_that_is_killed_leaves_no_lost_catalog(tmp_path, monkeypatch, renames):
    place, rename, done = Workspace(tmp_path), os.replace, []

    def rename_or_die(*paths):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(rename(*paths))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", rename_or_die)
        with write_catalog(place):
            pass
    left = place.catalog.with_name("catalog.duckdb.0123abcd.tmp")
    left.touch()
    with write_catalog(place):
        pass
    assert place.catalog.read_bytes() == place.catalog_copy.read_bytes() and not left.exists()
