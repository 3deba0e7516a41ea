"""The notebooks run from top to bottom on a real workspace."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.corpora import ask, make_corpus

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@pytest.mark.slow
def test_the_notebook_of_a_corpus_runs(tmp_path, samples, vocabulary_file, monkeypatch):
    for corpus in ("茶", "茶叶"):  # the second holds the same documents
        make_corpus(tmp_path, corpus, samples / "tea.jsonl", vocabulary_file)
    tables = check("dataset_stats", tmp_path, monkeypatch)
    longest = "select count(*) from instances where corpus = '茶' group by doc_id order by 1 desc limit 1"
    ((instances,),) = ask(tmp_path, longest)
    assert tables[-1].splitlines()[1].split()[-2] == str(instances)


def check(name, workspace, monkeypatch):
    """Run a notebook on a workspace: no errors, and at least two plots. Returns its tables."""
    monkeypatch.setenv("JIXU_WORKSPACE", str(workspace))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what is committed holds no results
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not any(output.output_type == "error" for output in outputs)
    return [output.get("data", {}).get("text/plain", "") for output in outputs]


def test_every_notebook_is_run():
    # that of evaluations in tests/test_docs.py, which has a workspace with some
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {"dataset_stats", "evaluation"}
