"""The notebooks run from top to bottom on a real workspace."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from data.refresh import RefreshSettings, refresh

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, samples, vocabulary_file, monkeypatch):
    refresh(
        RefreshSettings(
            corpus="茶",
            sources=(str(samples / "tea.jsonl"),),
            workspace=tmp_path,
            tokenizer=str(vocabulary_file),
            workers=1,
        )
    )
    monkeypatch.setenv("JIXU_WORKSPACE", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what is committed holds no results
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not any(output.output_type == "error" for output in outputs)


def test_there_is_a_notebook():
    assert NOTEBOOKS
