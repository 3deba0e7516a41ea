"""python -m albert.pretraining SETTINGS.json: a run without Prefect, for torchrun to start on each device.

torchrun --nproc-per-node 8 -m albert.pretraining models/RUN/settings.json
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from albert.pretraining.run import pretrain
from albert.pretraining.settings import read_settings
from data.errors import ConfigError, InputError
from data.workers import end_with_parent

EXIT_USER_ERROR, EXIT_INTERRUPTED = 2, 75  # 75: EX_TEMPFAIL of sysexits, "try again"


def main() -> int:
    """Train as a settings file says; the exit code is 75 if the run was interrupted and can resume."""
    parser = argparse.ArgumentParser(prog="python -m albert.pretraining", description=main.__doc__)
    parser.add_argument("settings", type=Path, help="a run's settings.json")
    path = parser.parse_args().settings
    if launcher := os.environ.get("JIXU_LAUNCHER"):
        end_with_parent(int(launcher))  # SIGTERM leaves a checkpoint
    try:
        result = pretrain(read_settings(path))
    except (ConfigError, InputError) as error:
        print(f"pretraining: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:  # the second Ctrl-C: the first one ends the run with a checkpoint
        print("pretraining: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{result.run_folder.name}: {result.status} after {result.steps:,} steps, {result.checkpoint}")
    return EXIT_INTERRUPTED if result.status == "interrupted" else 0


if __name__ == "__main__":
    raise SystemExit(main())
