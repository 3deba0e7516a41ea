"""The notebooks run from top to bottom on a real workspace."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.corpora import make_corpus

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@pytest.mark.slow
def test_the_notebook_of_a_corpus_runs(tmp_path, samples, vocabulary_file, monkeypatch):
    make_corpus(tmp_path, "茶", samples / "tea.jsonl", vocabulary_file)
    check("dataset_stats", tmp_path, monkeypatch)


def check(name, workspace, monkeypatch):
    """Run a notebook on a workspace: no errors, and at least two plots."""
    monkeypatch.setenv("JIXU_WORKSPACE", str(workspace))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what is committed holds no results
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not any(output.output_type == "error" for output in outputs)


def test_every_notebook_is_run():
    # that of evaluations in tests/test_docs.py, which has a workspace with some
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {"dataset_stats", "evaluation"}
