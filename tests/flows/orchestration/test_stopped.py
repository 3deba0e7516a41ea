"""Commands that are stopped during a training, by Ctrl-C and by SIGTERM."""

import os
import signal
import subprocess
import sys

import pytest

from albert.pretraining import list_checkpoints, step_of
from data.catalog import read_catalog
from data.workspace import Workspace
from tests.conftest import save_small_model
from tests.corpora import make_corpus
from tests.flows.serving import DEADLINE, ROOT, wait_until

pytestmark = pytest.mark.slow
LONG = ["--steps", 100_000]


def stop_in_training(number, command, runs, workspace, *arguments, **environment):
    """Run a command, and send it a signal once it has trained. Return its exit code, output and errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows", command, *map(str, (*arguments, *LONG, "--workspace", workspace))],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def has_trained():
        assert process.poll() is None, process.communicate()
        return any(path.stat().st_size for path in workspace.glob(f"models/{runs}/metrics.jsonl"))

    wait_until(has_trained)
    process.send_signal(number)
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
    command = "continued-pretraining"
    code, output, _ = stop_in_training(
        signal.SIGINT, command, "long", tmp_path / "w", *given, **prefect_server
    )
    assert code == 75 and output.startswith("long: interrupted after ")


def test_an_end_to_end_run_stops_with_its_training(tmp_path, samples, tokenizer, prefect_server):
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64)
    # version 1 of the corpus has another text
    make_corpus(tmp_path / "w", "domain", samples / "general.txt", init / "vocab.txt", max_seq_length=64)
    given = ["--domain", samples / "tea.jsonl", "--task", "tea-topics"]
    given += ["--text.max-seq-length", 64, "--pretraining.batch-tokens", 512]
    given += [part for name in ("train", "dev") for part in (f"--{name}", samples / f"tea_topics_{name}.tsv")]
    given += ["--init", init]
    code, output, errors = stop_in_training(
        signal.SIGTERM, "end-to-end", "domain-v2-*", tmp_path / "w", *given, **prefect_server
    )
    assert code == 75 and not output and errors.endswith("\nend-to-end: stopped\n")
    assert not (tmp_path / "w" / "reports" / "end-to-end-tea-topics").exists()
