"""A real disk that is full or read-only: a small tmpfs, mounted for one shell and gone with it."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.flows.serving import ROOT, free_port

AS_ROOT = ["unshare", "--user", "--map-root-user", "--mount"]
REFRESH = """
import sys
from pathlib import Path
from data.refresh import RefreshSettings, refresh

shared = dict(corpus="tea", tokenizer=sys.argv[2], workers=1)
print(refresh(RefreshSettings(workspace=Path(sys.argv[1]), source=tuple(sys.argv[3:]), **shared)))
"""


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
    script = f'set -e; mount -t tmpfs -o size=60m none "$DISK"\n{script}'
    done = subprocess.run(
        [*AS_ROOT, "bash", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


FULL = """
"$PYTHON" -c "$REFRESH" "$DISK/w" "$VOCABULARY" "$FIRST"
# once its work begins, nothing is left for it
begins() { until [ -d "$DISK/w/staging/tea" ]; do sleep 0.02; done; }
( begins; dd if=/dev/zero of="$DISK/fill" bs=64k 2>/dev/null || true ) &
set +e
GIVEN="--corpus tea --source $FIRST --source $SECOND --workers 1"
"$PYTHON" -m flows.refresh_corpus $GIVEN --workspace "$DISK/w"
echo "code $?"
set -e
wait
rm "$DISK/fill"
"$PYTHON" -m flows.doctor --workspace "$DISK/w" | grep -v "^note"
"$PYTHON" -c "$REFRESH" "$DISK/w" "$VOCABULARY" "$FIRST" "$SECOND"
"""

READ_ONLY = """
"$PYTHON" -c "$REFRESH" "$DISK/w" "$VOCABULARY" "$FIRST"
mount -o remount,ro "$DISK"
set +e
"$PYTHON" -m flows.refresh_corpus --corpus tea --source "$FIRST" --source "$SECOND" --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows.continued_pretraining --corpus tea --steps 2 --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows.serve --workspace "$DISK/w" --port "$PORT"
echo "code $?"
"$PYTHON" -m flows.doctor --workspace "$DISK/w" | grep "cannot be written"
"$PYTHON" -c "import data.catalog as s; print(s.open_workspace('$DISK/w').funnel('tea').fetchall()[0])"
"""


@pytest.fixture
def texts(samples, vocabulary_file):
    return {
        "REFRESH": REFRESH,
        "VOCABULARY": vocabulary_file,
        "FIRST": samples / "tea.jsonl",
        "SECOND": samples / "general.txt",
        "PORT": free_port(),
    }


def test_a_disk_that_fills_up_stops_a_refresh_in_a_line_and_loses_nothing(tmp_path, texts):
    done = on_small_disk(tmp_path / "disk", FULL, **texts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "code 2" in done.stdout
    assert "refresh_corpus: the disk is full: what was committed before is whole" in done.stderr
    assert "looked at" in done.stdout and "not as committed" not in done.stdout  # version 1 is whole
    assert "version=2, is_new=True" in done.stdout.splitlines()[-1]


def test_a_read_only_disk_is_refused_in_a_line_and_can_still_be_read(tmp_path, texts):
    done = on_small_disk(tmp_path / "disk", READ_ONLY, **texts)
    assert done.stdout.count("code 2") == 3, done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if "Read-only file system" in line]
    assert [line.split(":")[0] for line in refused] == ["refresh_corpus", "continued_pretraining", "serve"]
    assert "cannot be written to: choose another --workspace" in done.stdout
    assert "'read'" in done.stdout.splitlines()[-1], done.stdout
