"""A workspace on an S3-compatible server: refreshed by a command on one machine, trained on another."""

from pathlib import Path

import pytest

from data.errors import InputError
from data.publication import published_at, working_copy
from data.workspace import Workspace
from tests.commands import complete, refused, run_here, typed_as
from tests.conftest import save_small_model
from tests.corpora import ask
from tests.s3 import environment, serve_s3

pytest.importorskip("s3fs")
pytest.importorskip("moto")

URL = "s3://jixu/teams/tea"


@pytest.fixture(scope="module")
def s3():
    with serve_s3("jixu") as variables:
        yield variables


def machine(folder: Path, s3) -> dict[str, str]:
    """The environment of a machine: nothing but the server is shared."""
    return {"XDG_CACHE_HOME": str(folder), **s3}


def test_what_is_made_in_a_copy_is_published_when_the_work_ends_well(s3, tmp_path):
    def make(name: str, place: str, fails: bool = False) -> str:
        with working_copy(place) as copy:
            copy.report("").mkdir(exist_ok=True)
            copy.report(name).write_text(name, encoding="utf-8")
            if fails:
                raise InputError("it failed")
            return str(copy.root)

    url = "s3://jixu/made"
    with environment(machine(tmp_path / "one", s3)):
        assert make("plain.txt", str(tmp_path)) == str(tmp_path)  # a folder stays one
        with pytest.raises(InputError, match="it failed"):
            make("lost.txt", url, fails=True)
        here = Path(make("kept.txt", url))
    with environment(machine(tmp_path / "two", s3)), working_copy(url, read_only=True) as there:
        # what the failed run left on the first machine came along with the next
        assert sorted(p.name for p in there.report("").iterdir()) == ["kept.txt", "lost.txt"]
        assert there.root != here and published_at(there) == published_at(Workspace(here)) == url
        assert published_at(Workspace(tmp_path)) == str(tmp_path)


@pytest.mark.slow
def test_one_machine_refreshes_and_another_trains(
    s3, samples, vocabulary_file, tokenizer, prefect_server, tmp_path
):
    one, two = machine(tmp_path / "one", s3), machine(tmp_path / "two", s3)
    source, vocabulary = tmp_path / "tea.jsonl", tmp_path / "vocab.txt"
    source.write_bytes((samples / "tea.jsonl").read_bytes())
    vocabulary.write_bytes(vocabulary_file.read_bytes())
    given = {"corpus": "tea", "workspace": URL}
    refused(run_here("continued-pretraining", *typed_as(given), **one), "no catalog in")
    made = {"source": source, "tokenizer": vocabulary, "workers": 1, "max_seq_length": 64}
    assert "tea version 1" in complete("refresh-corpus", given | made, **one, **prefect_server)
    # what the first machine had beside the workspace is not on the second
    source.unlink()
    vocabulary.unlink()
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64)
    training = {"init": init, "steps": 4, "batch_tokens": 512, "run": "far"}
    complete("continued-pretraining", given | training, **two, **prefect_server)
    (here,) = (tmp_path / "one" / "jixu").glob("tea-*")
    done = run_here("corpus", "pull", URL, **one)
    assert done.returncode == 0 and done.stdout.startswith("publication 2: "), done.stderr
    assert (here / "models/far/checkpoint-4/model.safetensors").is_file()
    found = ask(here, "select run, status, steps from pretraining_runs")
    assert found == [("far", "completed", 4)] and (here / "reports/far/index.html").is_file()
