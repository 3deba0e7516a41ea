"""python -m albert.pretraining SETTINGS.json: a run without Prefect, for torchrun to start on each device.

torchrun --nproc-per-node 8 -m albert.pretraining models/RUN/settings.json
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from albert.pretraining.run import pretrain
from albert.pretraining.settings import read_settings
from data.terminal import EXIT_INTERRUPTED, make_app, run_app
from data.workers import end_with_parent

app = make_app("pretraining", "Train as a settings file says.")


@app.default
def train(settings: Path, /) -> int:
    """Train as a settings file says; the exit code is 75 if the run was interrupted and can resume.

    Args:
        settings: A run's settings.json.
    """
    if launcher := os.environ.get("JIXU_LAUNCHER"):
        end_with_parent(int(launcher))  # SIGTERM leaves a checkpoint
    result = pretrain(read_settings(settings))
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{result.run_folder.name}: {result.status} after {result.steps:,} steps, {result.checkpoint}")
    return EXIT_INTERRUPTED if result.status == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(run_app(app))
