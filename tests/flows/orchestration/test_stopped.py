"""A command that is stopped during a training, by SIGTERM; test_commands.py has Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import save_small_model
from tests.corpora import make_corpus
from tests.flows.serving import DEADLINE, ROOT, stopped_at, wait_until


@pytest.mark.slow
def test_an_end_to_end_run_stops_with_its_training(tmp_path, samples, tokenizer, prefect_server):
    workspace, init = (
        tmp_path / "w",
        save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64),
    )
    # version 1 of the corpus has another text
    make_corpus(workspace, "domain", samples / "general.txt", init / "vocab.txt", max_seq_length=64)
    given = ["--domain", samples / "tea.jsonl", "--task", "tea-topics", "--init", init, "--steps", 100_000]
    given += ["--text.max-seq-length", 64, "--pretraining.batch-tokens", 512, "--workspace", workspace]
    given += [part for name in ("train", "dev") for part in (f"--{name}", samples / f"tea_topics_{name}.tsv")]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows", "end-to-end", *map(str, given)],
        cwd=ROOT, env=os.environ | prefect_server, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def has_trained():
        assert process.poll() is None, process.communicate()
        return any(path.stat().st_size for path in workspace.glob("models/domain-v2-*/metrics.jsonl"))

    wait_until(has_trained)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75 and not output and errors.endswith("\nend-to-end: stopped\n")
    assert "Traceback" not in errors, errors
    (run,) = workspace.glob("models/domain-v2-*")
    assert 0 < stopped_at(workspace, run.name) < 100_000
    assert not (workspace / "reports" / "end-to-end-tea-topics").exists()
