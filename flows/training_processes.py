"""Training in several processes of this machine, one a GPU, while the flow waits and tells the catalog."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from albert.pretraining import PretrainResult, PretrainSettings
from albert.pretraining.settings import RESULT_FILE
from albert.trainer_state import TrainerState, is_whole, list_checkpoints, read_trainer_state
from data.files import write_text
from data.records import InputError

_LOOK_EVERY = 1.0  # seconds
_GRACE = 60.0  # seconds to write a checkpoint in, once asked to stop


def train_in_processes(
    settings: PretrainSettings,
    processes: int,
    on_checkpoint: Callable[[TrainerState, Path, str], None],
) -> PretrainResult:
    """`albert.pretraining.pretrain` under torchrun. Ctrl-C or a termination ends it with a checkpoint.

    Raises InputError when the processes end without a result; what they said stands above.
    """
    asked = settings.run_folder / "requested.json"
    write_text(asked, json.dumps(settings.to_record(), indent=2, ensure_ascii=False) + "\n")
    (settings.run_folder / RESULT_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", "albert.pretraining", str(asked)]
    # a group of its own: Ctrl-C reaches it through this process, once
    with subprocess.Popen(command, start_new_session=True) as launched:
        try:
            _watch(launched, settings.run_folder, on_checkpoint)
        except BaseException as stopped:
            launched.terminate()
            launched.wait(_GRACE)
            if not isinstance(stopped, KeyboardInterrupt):
                raise
    if not (settings.run_folder / RESULT_FILE).is_file():
        raise InputError(
            f"the {processes} training processes ended early, with code {launched.returncode}; the "
            "reason stands above. Run the same command again to go on from the newest checkpoint"
        )
    result = read_result(settings.run_folder)
    on_checkpoint(read_trainer_state(result.checkpoint), result.checkpoint, result.status)
    return result


def read_result(run_folder: Path) -> PretrainResult:
    """The result a run has left in its folder."""
    return PretrainResult.from_record(json.loads((run_folder / RESULT_FILE).read_text(encoding="utf-8")))


def _watch(
    launched: subprocess.Popen, run_folder: Path, on_checkpoint: Callable[[TrainerState, Path, str], None]
) -> None:
    known = next(iter(list_checkpoints(run_folder)), None)
    while launched.poll() is None:
        newest = next(iter(list_checkpoints(run_folder)), None)
        if newest is not None and newest != known and is_whole(newest):
            on_checkpoint(read_trainer_state(newest), newest, "running")
            known = newest
        try:
            launched.wait(_LOOK_EVERY)
        except subprocess.TimeoutExpired:
            continue
