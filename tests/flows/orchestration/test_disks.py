"""A real disk that is full or read-only: a small tmpfs, mounted for one shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.corpora import make_corpus
from tests.flows.serving import free_port

AS_ROOT = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    done = subprocess.run([*AS_ROOT, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return done.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not may_mount(), reason="needs Linux's user namespaces, to mount a tmpfs"),
]


def on_small_disk(disk, script, **variables):
    """Run a script in a shell that has 60 MiB of its own at `disk`."""
    disk.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("PREFECT_HOME", "PREFECT_API_URL")}
    environment |= {"DISK": str(disk), "PYTHON": sys.executable, **{k: str(v) for k, v in variables.items()}}
    mount = f'set -e; mount -t tmpfs -o size=60m none "$DISK"; source {Path(__file__).with_name(script)}'
    done = subprocess.run(
        [*AS_ROOT, "bash", "-c", mount],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def texts(samples, vocabulary_file, tmp_path):
    """What a workspace was made of, to be copied to the disk, and what is new."""
    first, made = samples / "tea.jsonl", tmp_path / "made"
    make_corpus(made, "tea", first, vocabulary_file)
    return {"MADE": made, "FIRST": first, "SECOND": samples / "general.txt", "PORT": free_port()}


def test_a_disk_that_fills_up_stops_a_refresh_and_loses_nothing(tmp_path, texts, prefect_server):
    done = on_small_disk(tmp_path / "disk", "full_disk.sh", **texts, **prefect_server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "code 2" in done.stdout
    assert "refresh-corpus: the disk is full: what was committed before is whole" in done.stderr
    assert "versions checked" in done.stdout and "not as committed" not in done.stdout  # version 1 is whole
    assert "tea version 2" in done.stdout


def test_a_read_only_disk_is_refused_and_can_still_be_read(tmp_path, texts):
    done = on_small_disk(tmp_path / "disk", "read_only_disk.sh", **texts)
    assert done.stdout.count("code 2") == 4, done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if "cannot be written to" in line]
    commands = ["refresh-corpus", "continued-pretraining", "serve", "corpus"]
    assert [line.split(":")[0] for line in refused] == commands
    assert "cannot be written to: choose another --workspace" in done.stdout
    assert "'read'" in done.stdout.splitlines()[-1], done.stdout
