"""Training in several processes of this machine, one a GPU, while the flow waits and tells the catalog."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from prefect.exceptions import TerminationSignal

from albert.pretraining import (
    RESULT_FILE,
    SETTINGS_FILE,
    PretrainResult,
    PretrainSettings,
    TrainerState,
    forget_failure,
    is_whole,
    list_checkpoints,
    read_failure,
    read_result,
    read_trainer_state,
    write_settings,
)
from data.errors import InputError

_LOOK_EVERY = 0.5  # seconds
_GRACE = 60.0  # seconds to write a checkpoint in, once asked to stop
OnCheckpoint = Callable[[TrainerState, Path, str], None]


def train_in_processes(
    settings: PretrainSettings, processes: int, on_checkpoint: OnCheckpoint
) -> PretrainResult:
    """`albert.pretraining.pretrain` in several processes, as torchrun would start them on one machine.

    Ctrl-C or a termination ends them with a checkpoint. Raises InputError, with the reason if they left one,
    when they end without a result.
    """
    asked = settings.run_folder / "requested.json"
    write_settings(settings, asked)
    (settings.run_folder / RESULT_FILE).unlink(missing_ok=True)
    forget_failure(settings.run_folder)
    launched = _launch(asked, processes)
    try:
        _watch(launched, settings.run_folder, on_checkpoint)
    except (KeyboardInterrupt, TerminationSignal):
        pass  # the result says that it was interrupted
    finally:
        _stop(launched)
    if not (settings.run_folder / RESULT_FILE).is_file():
        codes = ", ".join(str(process.returncode) for process in launched)
        failure = read_failure(settings.run_folder)
        unknown = "the reason stands above; the same command again goes on from the newest checkpoint"
        raise InputError(
            f"the {processes} training processes ended early, with codes {codes}: "
            + (failure.reason if failure else unknown)
        )
    result = read_result(settings.run_folder)
    on_checkpoint(read_trainer_state(result.checkpoint), result.checkpoint, result.status)
    return result


def _launch(settings: Path, processes: int) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // processes, 1)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # killed, this process takes its device's slot with it: they are not to train on
        "JIXU_LAUNCHER": str(os.getpid()),
    }
    command = [sys.executable, "-m", "albert.pretraining", str(settings)]
    return [
        # in a session of its own: Ctrl-C reaches it through this process, once
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,  # the flow says the same
            start_new_session=True,
        )
        for rank in range(processes)
    ]


def _watch(launched: Sequence[subprocess.Popen], run_folder: Path, on_checkpoint: OnCheckpoint) -> None:
    """Return when all processes have ended, or one of them badly."""
    known, settled = next(iter(list_checkpoints(run_folder)), None), _settled(run_folder)
    while any(process.poll() is None for process in launched):
        if any(process.returncode for process in launched):
            return
        if _settled(run_folder) != settled:  # they go on from the checkpoint that was there
            known, settled = None, _settled(run_folder)
        newest = next(iter(list_checkpoints(run_folder)), None)
        if newest is not None and newest != known and is_whole(newest):
            with suppress(FileNotFoundError):  # the run has gone on, and no longer keeps it
                on_checkpoint(read_trainer_state(newest), newest, "running")
            known = newest
        time.sleep(_LOOK_EVERY)


def _settled(run_folder: Path) -> int | None:
    """When the processes of a run found it in order and kept its settings, in nanoseconds."""
    path = run_folder / SETTINGS_FILE
    return path.stat().st_mtime_ns if path.is_file() else None


def _stop(launched: Sequence[subprocess.Popen]) -> None:
    """Ask those still there to write a checkpoint and end; wait until they have."""
    for process in launched:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in launched:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
