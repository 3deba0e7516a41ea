"""Commands that are stopped during a training."""

import os
import subprocess
import sys
import time

import pytest

from albert.pretraining import list_checkpoints, step_of
from data.catalog import read_catalog
from data.workspace import Workspace
from tests.conftest import save_small_model
from tests.corpora import make_corpus
from tests.flows.serving import DEADLINE, ROOT

pytestmark = pytest.mark.slow
LONG = ["--steps", 100_000]


def stop_in_training(command, runs, workspace, *arguments, **environment):
    """Run a command, and stop it when it has trained a little. Return its exit code, output and errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"flows.{command}", *map(str, (*arguments, *LONG, "--workspace", workspace))],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + DEADLINE
    while not any(path.stat().st_size for path in workspace.glob(f"models/{runs}/metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.1)
    process.terminate()
    output, errors = process.communicate(timeout=DEADLINE)
    assert "Traceback" not in errors, errors
    (run,) = workspace.glob(f"models/{runs}")
    with read_catalog(Workspace(workspace)) as db:
        rows = db.execute("select status, steps from pretraining_runs where run = ?", [run.name]).fetchall()
    assert rows == [("interrupted", step_of(list_checkpoints(run)[0]))] and 0 < rows[0][1] < 100_000
    return process.returncode, output, errors


def test_a_pretraining_leaves_a_checkpoint_and_says_so(
    tmp_path, samples, vocabulary_file, tokenizer, prefect_server
):
    make_corpus(tmp_path / "w", "tea", samples / "tea.jsonl", vocabulary_file, max_seq_length=64)
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64)
    given = ("--corpus", "tea", "--init", init, "--run", "long", "--batch-tokens", 512)
    code, output, _ = stop_in_training(
        "continued_pretraining", "long", tmp_path / "w", *given, **prefect_server
    )
    assert code == 75 and output.startswith("long: interrupted after ")


def test_an_end_to_end_run_stops_with_its_training(tmp_path, samples, tokenizer, prefect_server):
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64)
    # version 1 of the corpus has another text
    make_corpus(tmp_path / "w", "domain", samples / "general.txt", init / "vocab.txt", max_seq_length=64)
    given = ["--domain", samples / "tea.jsonl", "--task", "tea-topics"]
    given += ["--text.max-seq-length", 64, "--pretraining.batch-tokens", 512]
    given += [part for name in ("train", "dev") for part in (f"--{name}", samples / f"tea_topics_{name}.tsv")]
    code, output, errors = stop_in_training(
        "end_to_end", "domain-v2-*", tmp_path / "w", *given, "--init", init, **prefect_server
    )
    assert code == 75 and not output and errors.endswith("\nend-to-end: stopped\n")
    assert not (tmp_path / "w" / "reports" / "end-to-end-tea-topics").exists()
